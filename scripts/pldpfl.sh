#!/usr/bin/env bash
# PLDP-FL's experiments, Figures 2 to 7: arithmetic mean, weighted mean and selection for every set of budgets.
#
#   scripts/pldpfl.sh [key=value ...]                        everything, ten seeds
#   FIGURES="2 5" SEEDS=0,1 scripts/pldpfl.sh                some of it, as the mean of two seeds
#   SELECT=aggregator.rule=keep scripts/pldpfl.sh            another way of selecting
#
# Runs go to outputs/pldpfl/FIGURE, numbers to outputs/pldpfl/figure-FIGURE.csv; finished cells are skipped. The
# paper does not give local epochs, the scale of the data, nor the concentration of its Dirichlet partition: five
# passes (one of the large data sets), grey levels as they are in the digits and in [0, 1] elsewhere, and alpha
# 0.5 are ours. Where it lists a
# budget too few or too many, five of each are meant. Tests are on the whole test set.
set -euo pipefail

out=outputs/pldpfl
extra=("$@")
seeds=seed=${SEEDS:-0,1,2,3,4,5,6,7,8,9}
common=(algorithm=optimal model=logreg local_epochs=5 evaluate_every=5)

sweep() { # FIGURE key=value ...
    ${FEDPRIV:-fedpriv} run -m "hydra.sweep.dir=$out/$1" "${common[@]}" "${setup[@]}" "${@:2}" "$seeds" \
        ${extra[@]+"${extra[@]}"}
}

figure() { # FIGURE EPSILONS SETS: the same budget for all, then each set with each aggregator
    sweep "$1" "${without[@]}"
    sweep "$1" "${private[@]}" "epsilon=$2"
    sweep "$1" "${private[@]}" budget=list "budget.epsilons=$3" agg=mean,weighted
    sweep "$1" "${private[@]}" budget=list "budget.epsilons=$3" agg=selection ${SELECT:-}
    ${PYTHON:-python} "$(dirname "$0")/table.py" "$out/$1" >"$out/figure-$1.csv"
}

iid() { # CLIENTS ROUNDS BATCH DELTA Q C
    setup=(partition=iid "clients=$1" "rounds=$2" "batch_size=$3" "delta=$4" "clip_norm=$6")
    private=(dp=pldp_gaussian "dp_variant.data_rate=$5")
    without=(dp=none)
}

skewed() { # ROUNDS BATCH C
    setup=(partition=dirichlet partition.alpha=0.5 clients=10 "rounds=$1" "batch_size=$2" delta=0.00001 "clip_norm=$3")
    private=(dp=pldp_sign)
    without=(dp=pldp_sign dp_variant.noise=false)
}

few=[1,1,1,5,5,5,5,10,10,10]
half=[1,1,1,1,1,10,10,10,10,10]
more=[5,5,5,5,5,15,15,15,15,15],[5,5,5,10,10,10,10,15,15,15]

for name in ${FIGURES:-2 3 4 5 6 7}; do
    case $name in
    2) # "MNIST" of section 5.2 is scikit-learn's digits: 3 x 500 and 297 of 1,797
        iid 3 10 50 0.002 0.8 200
        setup+=(dataset=digits dataset.normalize=raw dataset.test_size=297 partition.samples_per_client=500)
        figure 2 1,5,10 [1,1,10],[1,5,10],[1,10,10]
        ;;
    3)
        iid 3 20 50 0.001 0.9 2
        setup+=(dataset=fmnist dataset.normalize=unit partition.samples_per_client=1000)
        figure 3 0.05,0.5,1 [0.05,0.05,1],[0.05,0.5,1],[0.05,1,1]
        ;;
    4)
        iid 10 50 1000 0.00002 0.8 2
        setup+=(dataset=covtype local_epochs=1)
        figure 4 1,5,10 "$half,$few"
        ;;
    5)
        skewed 10 400 4
        setup+=(dataset=mnist dataset.normalize=unit local_epochs=1)
        figure 5 5,10,15 "$more"
        ;;
    6)
        skewed 10 200 4
        setup+=(dataset=fmnist dataset.normalize=unit local_epochs=1)
        figure 6 5,10,15 "$more"
        ;;
    7)
        skewed 20 2500 2
        setup+=(dataset=covtype local_epochs=1)
        figure 7 1,5,10 "$half,$few"
        ;;
    *) echo "FIGURES: choose of 2 to 7, not $name" >&2 && exit 2 ;;
    esac
done
