"""Every option of every group, in tiny runs of two rounds. `test_matrix.py` asserts that none is left out."""

SMALL = "clients=3 rounds=2 batch_size=48 local_steps=2 threads=1 dataset=small model=small partition=small"
OURS = {"dataset": {"small": "digits"}, "model": {"small": "mlp"}, "partition": {"small": "iid"}}  # conf/
_IMAGES = "dataset=few partition=few batch_size=8 dataset.side="
_FEDPD = "stage=fedpd stage.cache=false stage.rounds=1 stage.latent=2 stage.data_fraction=0.4"
_DDP = "dp=ddp dp_variant.bits=20"
_BUDGETS = "budget=list budget.epsilons=[2,4,8]"

CASES = {
    # engines, numbers, and what a local step can have
    "ldp": "",
    "ldp in float64": "dtype=float64",
    "ldp with momentum and decay": "momentum=0.9 weight_decay=0.01",
    "ldp of unequal clients": "partition=dirichlet partition.alpha=1 local_steps=null batch_size=200",
    "loop": "engine=loop",
    "loop with batch norm": "engine=loop dp=none model.norm=batch",
    "loop in float64": "engine=loop dp=none dtype=float64",
    "participations": "participations=1 sample_rate=0.5 clients=4",
    "samples kept": "transform=linear samples_at=[0,2]",
    "noise of the system": "noise_seed=os dp=none",
    # models
    "logreg": "model=logreg",
    "linear": "model=linear",
    "group norm": "model.norm=group model.sizes=[16]",
    "batch norm": "dp=none model.norm=batch",
    "cnn": f"model=cnn {_IMAGES}20",
    "cnn_two_layer": f"model=cnn_two_layer {_IMAGES}16",
    "cnn_cifar": f"model=cnn_cifar model.dense=16 {_IMAGES}8",
    "vgg_small": f"model=vgg_small model.widths=[4] model.dense=8 {_IMAGES}8",
    "lstm": f"model=lstm model.embedding=4 model.hidden=4 dataset.kind=words {_IMAGES}4",
    "a layer without a rule": "model=odd",
    "dropout without a rule": "model=odd model.dropout=0.3",
    "pixels made ready in steps": f"model=logreg dp=none {_IMAGES}8",
    # partitions
    "classes": "partition=classes",
    "shards": "partition=shards",
    "subset": "partition=subset",
    # transforms
    "transform linear": "transform=linear",
    "transform linear by pixel": "transform=linear transform.alpha=pixel transform.lr=0.5 dp=none",
    "transform sigmoid": "transform=sigmoid",
    "transform tanh": "transform=tanh",
    "transform relu": "transform=relu",
    "transform quadratic": "transform=quadratic",
    "transform conv2d": "transform=conv2d",
    # algorithms
    "fedprox": "algorithm=fedprox",
    "scaffold": "algorithm=scaffold",
    "scaffold I": "algorithm=scaffold algorithm.option=I dp=none",
    "dp_scaffold": "algorithm=dp_scaffold",
    "fednova": "algorithm=fednova",
    "fedbn": "algorithm=fedbn dp=none model.norm=batch",
    "fedgn": "algorithm=fedgn model.norm=group",
    "ppsgd": "algorithm=ppsgd",
    "optimal": "algorithm=optimal model=logreg",
    "server momentum": "algorithm.server_momentum=0.9 dp=none",
    # mechanisms
    "cdp": "dp=cdp",
    "cdp adaptive, every step": "dp=cdp dp_variant.bound=adaptive dp_variant.clip=step",
    "cdp as printed": "dp=cdp dp_variant.bound=paper",
    "cdp of few": "dp=cdp sample_rate=0.3",
    "ddp": _DDP,
    "ddp masked": f"{_DDP} upload.protocol=masked upload.dropout=0.3 upload.tolerance=0.7",
    "duchi shuffled": "dp=duchi upload=shuffled epsilon=1",
    "duchi adaptive, models shuffled": "dp=duchi dp_variant.range=adaptive upload=shuffled upload.unit=model",
    "pldp_gaussian": "dp=pldp_gaussian",
    "pldp_sign": "dp=pldp_sign",
    "uniform noise": "dp_variant.noise=uniform budget=uniform",
    # aggregators
    "size": "agg=size dp=none",
    "weiavg": f"agg=weiavg {_BUDGETS}",
    "weighted": f"agg=weighted {_BUDGETS}",
    "public_only": f"agg=public_only {_BUDGETS}",
    "pfa": f"agg=pfa {_BUDGETS} aggregator.fraction=0.6",
    "pfa random": f"agg=pfa aggregator.projection=random {_BUDGETS}",
    "pfa as printed": f"agg=pfa aggregator.rank1=true {_BUDGETS}",
    "pfa_plus": f"agg=pfa_plus {_BUDGETS} aggregator.centred=true aggregator.fraction=0.6",
    "selection": f"agg=selection {_BUDGETS}",
    "selection independent": f"agg=selection aggregator.rule=independent dp=pldp_gaussian {_BUDGETS}",
    "selection of draws": f"agg=selection aggregator.rule=draws aggregator.draws=2 dp=pldp_sign {_BUDGETS}",
    # budgets: they differ on the host only
    "gauss": "budget=gauss",
    "mixgauss1": "budget=mixgauss1 epsilon=1",
    "mixgauss2": "budget=mixgauss2",
    "mixgauss3": "budget=mixgauss3",
    "mixgauss4": "budget=mixgauss4",
    "pareto": "budget=pareto",
    # the stage
    "fedpd open": f"{_FEDPD} dp=none",
    "fedpd for samples": f"{_FEDPD} stage.noise=laplace stage.batch_size=20",
    "fedpd for clients": f"{_FEDPD} dp=cdp stage.view=generalisation",
    "fedpd, raw": f"{_FEDPD} stage.share=raw dp=none stage.clip=3",
    "fedpd, batch norm": f"{_FEDPD} dp=none engine=loop model.norm=batch",
}
LONG = {
    "resnet18": f"model=resnet18 dp=none clients=2 {_IMAGES}8",
    "resnet18 with batch norm": f"model=resnet18 model.norm=batch dp=none clients=2 {_IMAGES}8",
    "alexnet": f"model=alexnet dp=none clients=2 rounds=1 {_IMAGES}63",
}
ALL = CASES | LONG
PIXELS = ("pixels made ready in steps",)  # as stored until a step takes them, as a large data set is
# Their releases are integers, signs or one of two points: a rounding can turn one over.
DISCRETE = ("ddp", "ddp masked", "duchi", "pldp_sign", "selection of draws")
