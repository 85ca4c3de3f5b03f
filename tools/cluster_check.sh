# shellcheck shell=bash disable=SC2154 # variables of tools/cluster
# The verb check of tools/cluster, which sources this file: verifies that messages between nodes obey
# the limits of their links, by cluster_check.c.

# judge TEXT RATE LIMIT LOW HIGH: prints the rate relative to the limit; returns 1 below LOW, 2 above
# HIGH.
judge() {
    LC_ALL=C awk -v text="$1" -v rate="$2" -v limit="$3" -v low="$4" -v high="$5" 'BEGIN {
        share = rate / limit
        bad = share < low ? 1 : share > high ? 2 : 0
        printf "%-28s %9.1f Mbit/s, %.2f of the limit: %s\n", text, rate / 1e6, share,
            bad == 0 ? "ok" : bad == 1 ? "TOO SLOW" : "TOO FAST"
        exit bad
    }'
}

# measure MPI PROGRAM NODES RANKS_A_NODE LIMIT: sets rates to the medians that the program prints.
measure() {
    local seconds=$((30 + 1000000000 / $5)) status=0
    timeout --foreground -k 5 "$seconds" "$BASH" "$self" --name "$name" mpiexec --mpi "$1" \
        --on "$3" --ppn "$4" -n 2 "$2" >"$temporary/out" 2>&1 </dev/null || status=$?
    mapfile -t rates < <(sed -n 's/^bits_per_second //p' "$temporary/out")
    if [ ${#rates[@]} != 2 ]; then
        cat "$temporary/out" >&2
        [ "$status" != 124 ] || status="no end after $seconds s"
        fail "check: the program run by $1 on $3 failed ($status); see its output above"
    fi
}

# check_mpi MPI PROGRAM NODE NODE LIMIT: prints what it measures; fails if one rate is wrong.
check_mpi() {
    local mpi=$1 program=$2 a=$3 b=$4 bits=$5 wrong=0 rates
    measure "$mpi" "$program" "$a,$b" 1 "$bits"
    judge "$mpi, $a to $b" "${rates[0]}" "$bits" 0.6 1.05 || wrong=$((wrong | $?))
    judge "$mpi, $b to $a" "${rates[1]}" "$bits" 0.6 1.05 || wrong=$((wrong | $?))
    measure "$mpi" "$program" "$a" 2 "$bits"
    judge "$mpi, within $a" "${rates[0]}" "$bits" 1.05 1e9 || wrong=$((wrong | 4))
    [ $((wrong & 2)) = 0 ] ||
        echo "cluster: $mpi did not use the network between $a and $b but shared memory, or the" \
            "limit is not in force: figures from this cluster say nothing about a network" >&2
    [ $((wrong & 1)) = 0 ] ||
        echo "cluster: $mpi is slower between $a and $b than their link: the processors are busy" \
            "with something else, or the nodes' share of them is too small for the bandwidth" >&2
    [ $((wrong & 4)) = 0 ] ||
        echo "cluster: two ranks of $mpi on $a are as slow as the network: they do not share memory" >&2
    [ "$wrong" = 0 ]
}

# compile MPI: prints the path of cluster_check.c compiled for it; 77: there is no compiler.
compile() {
    local mpicc found
    for mpicc in "$(dirname "$(find_mpiexec "$1")")/mpicc" "mpicc.$1"; do
        found=mpich
        [[ $("$mpicc" --showme:version 2>/dev/null) != *'Open MPI'* ]] || found=openmpi
        if command -v "$mpicc" >/dev/null && [ "$found" = "$1" ]; then
            "$mpicc" -O1 -o "$temporary/check.$1" "$here/cluster_check.c" >&2 ||
                fail "check: $mpicc cannot compile $here/cluster_check.c"
            echo "$temporary/check.$1"
            return
        fi
    done
    return 77
}

verb_check() {
    local mpis='mpich openmpi' program ready='' mpi bits other checked='' status bad=0 pair
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || misuse "check: $1 is unknown or lacks its value"
        case $1 in
        --mpi) mpis=$2 ;;
        --program) ready=$2 ;;
        *) misuse "check does not know $1" ;;
        esac
        shift 2
    done
    if [ -n "$ready" ]; then
        ready=$(readlink -f "$ready")
        [ -x "$ready" ] || misuse "check: --program is not a program: $ready"
        [[ $mpis != *' '* ]] || mpis=$(default_mpi)
    fi
    [[ $mpis == *' '* ]] || need_mpi "$mpis"
    need 77
    need_cluster
    # shellcheck disable=SC2046 # names
    mapfile -t pair < <(reachable_nodes $(nodes))
    [ ${#pair[@]} -ge 2 ] || fail "check needs two reachable nodes"
    bits=$(bits_of "$(cat "$state/${pair[0]}/bandwidth")")
    other=$(bits_of "$(cat "$state/${pair[1]}/bandwidth")")
    [ "$bits" != none ] || bits=$other
    [ "$bits" != none ] || fail "check: ${pair[0]} and ${pair[1]} have no bandwidth limit"
    [ "$other" = none ] || [ "$other" -ge "$bits" ] || bits=$other

    temporary=$(mktemp -d)
    trap 'rm -rf "$temporary"' EXIT
    for mpi in $mpis; do
        find_mpiexec "$mpi" >/dev/null || continue
        program=$ready
        if [ -z "$program" ]; then
            status=0
            program=$(compile "$mpi") || status=$?
            [ "$status" != 77 ] || continue
            [ "$status" = 0 ] || exit "$status"
        fi
        checked=yes
        check_mpi "$mpi" "$program" "${pair[0]}" "${pair[1]}" "$bits" || bad=1
    done
    if [ -z "$checked" ]; then
        echo "cluster: check needs mpiexec and mpicc of ${mpis/ / or }" \
            "(Debian: mpich and libmpich-dev, openmpi-bin and libopenmpi-dev)" >&2
        exit 77
    fi
    exit "$bad"
}
