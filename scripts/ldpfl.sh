#!/usr/bin/env bash
# LDP-FL's experiments: Table 1 (fixed and adaptive range) and the sweeps of Figures 3 to 5, as tables.
#
#   scripts/ldpfl.sh [key=value ...]                        MNIST and Fashion-MNIST
#   PARTS=table1 DATASETS=mnist scripts/ldpfl.sh seed=0,1   some of it, as the mean of two seeds
#   DATASETS=cifar10 scripts/ldpfl.sh                       hours on two cores; upload=plain needs less memory
#
# Runs go to outputs/ldpfl/PART/DATASET and the numbers to outputs/ldpfl/PART-DATASET.csv. Finished cells are
# skipped, so a stopped study continues. The paper gives clients, rounds, learning rates and fixed ranges; batch
# size and local epochs it does not, so these are ours, as is the cap of the adaptive range. Figure 4's share of
# clients is swept at the caption's number of clients (the text says 500).
set -euo pipefail

out=outputs/ldpfl
extra=("$@")
common=(partition=iid batch_size=10 local_epochs=1 delta=0.00001)

about() { # the data set's own values: all runs; a fixed range; epsilons of Figures 3, 4 and 5
    case $1 in
    mnist) plain=(dataset=mnist model=cnn_two_layer lr=0.03 clients=100 rounds=10) radius=0.075 epsilon=1 ;;
    fmnist) plain=(dataset=fmnist model=cnn_two_layer lr=0.03 clients=200 rounds=15) radius=0.015 epsilon=5 ;;
    cifar10) plain=(dataset=cifar10 model=vgg_small lr=0.015 clients=500 rounds=15) radius=1 epsilon=10 ;;
    *) echo "DATASETS: choose of mnist, fmnist, cifar10, not $1" >&2 && exit 2 ;;
    esac
    fixed=(dp=duchi upload=shuffled dp_variant.range=fixed "dp_variant.radius=$radius")
    adaptive=(dp=duchi upload=shuffled dp_variant.range=adaptive)
    usual=("${fixed[@]}") # what the figures use
    epsilons=1,2,3,4,5,6,7,8,9,10
    case $1 in
    mnist) epsilons=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1 ;;
    cifar10) usual=("${adaptive[@]}") ;;
    esac
}

sweep() { # PART DATASET key=value ...
    ${FEDPRIV:-fedpriv} run -m "hydra.sweep.dir=$out/$1/$2" "${common[@]}" "${plain[@]}" "${@:3}" \
        ${extra[@]+"${extra[@]}"}
}

table1() { # with the headline of section 5.2 for MNIST, epsilon 1
    local more=5,10
    [ "$1" = mnist ] && more=1,5,10
    sweep table1 "$1" "${fixed[@]}" "epsilon=$more"
    sweep table1 "$1" "${adaptive[@]}" "epsilon=$more"
    sweep table1 "$1" dp=none
}

clients() { # Figure 3
    sweep clients "$1" "${usual[@]}" "epsilon=$epsilon" clients=50,100,200,500
    sweep clients "$1" dp=none clients=50,100,200,500
}

fraction() { # Figure 4, left
    sweep fraction "$1" "${usual[@]}" "epsilon=$epsilon" sample_rate=0.1,0.2,0.4,0.6,0.8,1
}

rounds() { # Figure 4, right: metrics.csv has the curve, for the noise does not depend on the number of rounds
    sweep rounds "$1" "${usual[@]}" "epsilon=$epsilon" rounds=20
}

budgets() { # Figure 5, a to c
    sweep budgets "$1" "${usual[@]}" "epsilon=$epsilons"
    sweep budgets "$1" dp=none
}

ranges() { # Figure 5d
    sweep ranges "$1" "${fixed[@]}" "epsilon=$epsilon" dp_variant.radius=0.005,0.015,0.05,0.075,0.15,0.5,1
}

for data in ${DATASETS:-mnist fmnist}; do
    about "$data"
    for part in ${PARTS:-table1 clients fraction rounds budgets ranges}; do
        "$part" "$data"
        ${PYTHON:-python} "$(dirname "$0")/table.py" "$out/$part/$data" >"$out/$part-$data.csv"
    done
done
