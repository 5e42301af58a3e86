"""Every option of every group in tiny runs of two rounds, several groups at a time.

`test_matrix.py` asserts that no option is left out. A run's budgets, partition and noise multipliers are
made on the host, so they go along with what differs on the device.
"""

SMALL = "clients=3 rounds=2 batch_size=48 local_steps=2 threads=1 dataset=small model=small partition=small"
OURS = {"dataset": {"small": "digits"}, "model": {"small": "mlp"}, "partition": {"small": "iid"}}  # conf/
_IMAGES = "dataset=few partition=few batch_size=8 dp_variant.paper_sigma=true dataset.side="
_FEDPD = "stage=fedpd stage.cache=false stage.rounds=1 stage.latent=2 stage.data_fraction=0.3"
_DDP = "dp=ddp dp_variant.bits=20"
_BUDGETS = "dp_variant.paper_sigma=true budget"

CASES = {
    # engines, numbers, and what a local step can have
    "ldp": "",
    "float64": "dtype=float64",
    "momentum and decay": "momentum=0.9 weight_decay=0.01",
    "unequal clients": "partition=dirichlet partition.alpha=1 local_steps=null batch_size=200 dp=none",
    "loop": "engine=loop",
    "loop with batch norm": "engine=loop dp=none model.norm=batch",
    "loop in float64": "engine=loop dp=none dtype=float64",
    "participations": "participations=1 sample_rate=0.5 clients=4 dp_variant.paper_sigma=true",
    "noise of the system": "noise_seed=os",
    # models
    "logreg": "model=logreg partition=classes dp_variant.paper_sigma=true",
    "linear": "model=linear partition=shards dp_variant.paper_sigma=true",
    "group norm": "model.norm=group model.sizes=[16] algorithm=fedgn",
    "cnn": f"model=cnn {_IMAGES}20",
    "cnn_two_layer": f"model=cnn_two_layer {_IMAGES}16",
    "cnn_cifar": f"model=cnn_cifar model.dense=8 {_IMAGES}8",
    "vgg_small": f"model=vgg_small model.widths=[4] model.dense=8 {_IMAGES}8",
    "lstm": f"model=lstm model.embedding=4 model.hidden=4 dataset.kind=words {_IMAGES}4",
    "a layer without a rule": "model=odd model.dropout=0.3",
    "pixels made ready in steps": f"model=logreg {_IMAGES}8 partition=natural",
    # transforms
    "transform linear": "transform=linear samples_at=[0,2]",
    "transform linear by pixel": "transform=linear transform.alpha=pixel transform.lr=0.5 dp=none",
    "transform conv2d": "transform=conv2d",
    # algorithms
    "fedprox": "algorithm=fedprox dp=none partition=subset",
    "scaffold": "algorithm=scaffold dp=none",
    "scaffold I": "algorithm=scaffold algorithm.option=I dp=none",
    "dp_scaffold": "algorithm=dp_scaffold",
    "fednova": "algorithm=fednova agg=size dp=none",
    "fedbn": "algorithm=fedbn dp=none model.norm=batch",
    "ppsgd": "algorithm=ppsgd dp=cdp",
    "optimal": "algorithm=optimal model=logreg dp=none",
    "server momentum": "server=momentum algorithm.server_momentum=0.5 dp=none",
    # mechanisms and uploads
    "cdp": "dp=cdp server=adam",
    "cdp adaptive, every step": "dp=cdp server=yogi dp_variant.bound=adaptive dp_variant.clip=step",
    "cdp as printed": "dp=cdp server=adagrad dp_variant.bound=paper",
    "cdp of few": "dp=cdp sample_rate=0.3",
    "cdp correlated": "dp=cdp_correlated",
    "cdp correlated by buffers": "dp=cdp_correlated dp_variant.matrix=blt",
    "cdp correlated by a tree": "dp=cdp_correlated dp_variant.matrix=tree",
    "ldp_update": "dp=ldp_update",
    "ldp_update laplace": "dp=ldp_update dp_variant.noise=laplace",
    "ddp": _DDP,
    "ddp masked": f"{_DDP} upload.protocol=masked upload.dropout=0.3 upload.tolerance=0.7",
    "duchi shuffled": "dp=duchi upload=shuffled epsilon=1",
    "duchi adaptive, models shuffled": "dp=duchi dp_variant.range=adaptive upload=shuffled upload.unit=model",
    "pldp_gaussian": "dp=pldp_gaussian",
    "pldp_sign": "dp=pldp_sign",
    # aggregators, with a budget and a transform each
    "weiavg": f"agg=weiavg {_BUDGETS}=gauss transform=sigmoid",
    "weighted": f"agg=weighted {_BUDGETS}=mixgauss1 transform=tanh",
    "public_only": f"agg=public_only {_BUDGETS}=mixgauss2 transform=relu",
    "pfa": f"agg=pfa {_BUDGETS}=mixgauss3 aggregator.fraction=0.6 transform=quadratic",
    "pfa random": f"agg=pfa aggregator.projection=random {_BUDGETS}=mixgauss4",
    "pfa as printed": f"agg=pfa aggregator.rank1=true {_BUDGETS}=pareto",
    "pfa_plus": f"agg=pfa_plus {_BUDGETS}=uniform aggregator.centred=true aggregator.fraction=0.6",
    "selection": f"agg=selection {_BUDGETS}=list budget.epsilons=[2,4,8]",
    "selection independent": "agg=selection aggregator.rule=independent dp=pldp_gaussian budget=uniform",
    "selection of draws": "agg=selection aggregator.rule=draws aggregator.draws=2 dp=pldp_sign",
    # the stage
    "fedpd open": f"{_FEDPD} dp=none",
    "fedpd for samples": f"{_FEDPD} stage.noise=laplace dp_variant.paper_sigma=true",
    "fedpd for clients": f"{_FEDPD} dp=cdp stage.view=generalisation",
    "fedpd, batch norm": f"{_FEDPD} dp=none engine=loop model.norm=batch",
}
LONG = {
    "resnet18": f"model=resnet18 {_IMAGES}8 dp=none clients=2",
    # In double precision: eighteen layers of batch norm over a few samples make roundings visible.
    "resnet18 with batch norm": f"model=resnet18 model.norm=batch {_IMAGES}8 dp=none clients=2 dtype=float64",
    "alexnet": f"model=alexnet {_IMAGES}63 dp=none clients=2",
}
ALL = CASES | LONG
PIXELS = ("pixels made ready in steps",)  # as stored until a step takes them, as a large data set is
# Their releases are integers, signs or one of two points: a rounding can turn one over.
DISCRETE = tuple(
    name for name, case in ALL.items() if any(f"dp={v}" in case for v in ("ddp", "duchi", "pldp_sign"))
)

# -- what a round may cost

# Kernels of a local step of all clients, over two steps. A plain step of the small network takes 36 and a
# private one 56; a draw of noise takes 203 and serves both steps. More layers, more kernels.
STEP = 190
STEPS = {
    "cnn": 310, "cnn_two_layer": 325, "vgg_small": 285, "lstm": 500,  # four words, and two layers
    "cnn_cifar": 900, "a layer without a rule": 370,  # a draw of masks for every dropout and step
    # Some passes through two networks, and AdamW parameter by parameter.
    "fedpd open": 480, "fedpd for clients": 500, "fedpd, batch norm": 1100, "fedpd for samples": 1200,
    "resnet18": 3000, "resnet18 with batch norm": 5000, "alexnet": 2000,
}  # fmt: skip


def bytes_of_a_round(clients: int, widest: int, plan: int, numbers: int, case: str) -> int:
    """What may cross in a round, of so many participants with so many samples, batches of so many entries in
    all and messages of so many numbers: owners there and back, batches, and a few numbers a client. Where
    noise is drawn exactly, on the host, it crosses too, and a mask for each."""
    drawn = numbers * {"ddp": 4, "ddp masked": 8 * clients + 16}.get(case, 0)
    # Shares of the shared set are drawn on the host: owners of both, for passes over them.
    mixed = 32 * clients * widest + 12 * plan if "stage=fedpd" in ALL[case] else 0
    return 16 * clients * widest + 12 * plan + drawn + mixed + 200 * clients + 1000
