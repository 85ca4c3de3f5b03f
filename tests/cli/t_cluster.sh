#!/bin/bash
# tools/cluster: a cluster of two nodes obeys its limits, its nodes die and come back, links go and
# come, and nothing is left of it.  Needs root, namespaces and an MPI.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
export EVENKEEL_CLUSTER=test_$$
temporary=$(mktemp -d)
export EVENKEEL_CLUSTER_DIR=$temporary/state
PATH=$PATH:/usr/sbin:/sbin

cluster() { "$here/tools/cluster" "$@"; }

trap 'cluster down >/dev/null 2>&1; rm -rf "$temporary"' EXIT
trap 'exit 1' INT TERM

fail() {
    echo "FAILED: $*"
    cluster show
    exit 1
}

# expect WANTED WHAT GOT
expect() { [ "$1" = "$3" ] || fail "$2: \"$3\" instead of \"$1\""; }

# Whether node1's packets reach node2: nobody listens there, so its kernel refuses.
linked() {
    LC_ALL=C cluster run node1 timeout 3 bash -c '</dev/tcp/node2/9' 2>&1 | grep -q refused
}

# eventually COMMAND...: succeeds within a minute.
eventually() {
    local end=$((SECONDS + 60))
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# Whatever still bears the cluster's name.
leftovers() {
    ip netns list | grep -F "evenkeel.$EVENKEEL_CLUSTER."
    find /sys/fs/cgroup -maxdepth 3 -name "evenkeel.$EVENKEEL_CLUSTER.*" 2>/dev/null
    grep -F "evenkeel.$EVENKEEL_CLUSTER." /proc/[0-9]*/mountinfo 2>/dev/null
    find "$EVENKEEL_CLUSTER_DIR" -mindepth 1 2>/dev/null
    ip -o link show | grep -wE 'node[12]'
    for pid in ${pids-}; do
        ! kill -0 "$pid" 2>/dev/null || ps -o pid,args "$pid"
    done
}

nothing_left() { [ -z "$(leftovers)" ]; }

# The cores on which NODE's processes run.
cores_of() { cluster run "$1" sh -c 'taskset -cp $$' | awk '{ print $NF }'; }

# shown NODE: `show` names the process that this test runs there.
shown() { cluster show | grep -q "^$1 .*sleep("; }

# obeys ARGUMENT...: `check` succeeds.  What else runs here can slow sends down but never speed
# them up, so slow ones get more chances.
obeys() {
    local i
    for i in {1..8}; do
        cluster check "$@" >"$temporary/check" 2>&1
        status=$?
        cat "$temporary/check"
        if [ "$status" != 1 ] || grep -q 'TOO FAST' "$temporary/check"; then
            break
        fi
    done
    if [ "$status" = 77 ]; then
        echo "skipped: the reason is above"
        exit 77
    fi
    [ "$status" = 0 ] || fail "check $* ended with $status after $i attempts"
}

if ! "$here/tools/cluster" --help | grep -q '^usage: '; then
    fail "--help is no help"
fi
cluster check >"$temporary/check" 2>&1
if [ $? = 77 ]; then
    sed 's/^cluster: /skipped: /' "$temporary/check"
    exit 77
fi

# A share of the processors is not to be had everywhere.
cluster up --nodes 2 --bandwidth 200mbit --cpu 1 2>"$temporary/up"
status=$?
if [ "$status" != 0 ] && grep -q -e '--cpu is not available' "$temporary/up"; then
    cat "$temporary/up"
    [ -z "$(leftovers)" ] || fail "a failed start left: $(leftovers)"
    cluster up --nodes 2 --bandwidth 200mbit || fail "up"
elif [ "$status" != 0 ]; then
    cat "$temporary/up"
    fail "up"
else
    quota=$(find /sys/fs/cgroup -path "*/evenkeel.$EVENKEEL_CLUSTER.node2/cpu.cfs_quota_us" \
        -o -path "*/evenkeel.$EVENKEEL_CLUSTER.node2/cpu.max" | head -n 1)
    expect "-1" "the quota of one core" "$(cut -d' ' -f1 "$quota" | sed 's/max/-1/')"
    if [ "$(nproc)" -ge 2 ]; then
        expect 1 "number of node1's cores" "$(cluster run node1 nproc)"
        [ "$(cores_of node1)" != "$(cores_of node2)" ] || fail "two nodes of one core share core $(cores_of node1)"
    fi
    cluster cpu node2 0.5 || fail "cpu"
    expect 2500 "the quota of half a core in 5 ms" "$(cut -d' ' -f1 "$quota")"
    cluster cpu node2 1 || fail "cpu"
    cluster run node2 grep -q "evenkeel.$EVENKEEL_CLUSTER.node2" /proc/self/cgroup ||
        fail "a process of node2 is not in its cgroup"
fi
! cluster up 2>/dev/null || fail "up made the same cluster twice"
expect node2 "host name" "$(cluster run node2 cat /proc/sys/kernel/hostname)"
expect "10.77.0.1" "address of node1 as node2 sees it" \
    "$(cluster run node2 getent ahostsv4 node1 | awk '{ print $1; exit }')"
expect "node1 node2 " "hosts" "$(cluster hosts | tr '\n' ' ')"
expect 7 "status of a command" "$(
    cluster run node1 sh -c 'exit 7'
    echo $?
)"

obeys
expect "node1 node2 " "where mpiexec starts ranks" \
    "$(cluster mpiexec cat /proc/sys/kernel/hostname | sort | tr '\n' ' ')"

# Each end of a link limits by itself; and where neither does, check says so.
mpi=$(awk -F, '{ print $1; exit }' "$temporary/check")
cluster bandwidth node2 none || fail "bandwidth"
obeys --mpi "$mpi"
tc -n "evenkeel.$EVENKEEL_CLUSTER.node1" qdisc del dev eth0 root
tc -n "evenkeel.$EVENKEEL_CLUSTER.head" qdisc del dev node1 root
cluster check --mpi "$mpi" >"$temporary/check" 2>&1
expect 1 "status of check without limits in force" $?
grep -q 'TOO FAST' "$temporary/check" || fail "check: $(cat "$temporary/check")"

eventually linked || fail "node1 does not reach node2"
cluster cut node2 || fail "cut"
! linked || fail "node1 reaches node2 over a link that is cut"
expect "node1 " "hosts after cut" "$(cluster hosts | tr '\n' ' ')"
cluster restore node2 || fail "restore"
eventually linked || fail "node1 does not reach node2 over the restored link"
cluster part node1 node2 || fail "part"
! linked || fail "node1 reaches node2, from which it is parted"
expect "node1 node2 " "hosts after part" "$(cluster hosts | tr '\n' ' ')"
cluster join node1 node2 || fail "join"
eventually linked || fail "node1 does not reach node2, which it has joined"

shm="evenkeel.$EVENKEEL_CLUSTER.node2"
mounted() { grep -qs " - tmpfs $shm " /proc/[0-9]*/mountinfo; }
gone() { ! mounted; }
ended() { ! kill -0 "$job" 2>/dev/null; }
cluster run node2 sh -c 'echo >/dev/shm/mark'
[ ! -e /dev/shm/mark ] || fail "node2 shares /dev/shm with this machine"
! cluster run node1 test -e /dev/shm/mark || fail "node2 shares /dev/shm with node1"
mounted || fail "this test does not see node2's /dev/shm"
cluster run node2 sleep 1000 &
job=$!
eventually shown node2 || fail "show does not show a process"
cluster kill node2 || fail "kill"
eventually ended || fail "a command outlives its node"
wait "$job" 2>/dev/null
expect 137 "status of a command of a killed node" $?
eventually gone || fail "a dead node's /dev/shm is still mounted"
cluster show | grep -q '^node2 .* dead ' || fail "a killed node is not shown as dead"
expect "node1 " "hosts after kill" "$(cluster hosts | tr '\n' ' ')"
! cluster run node2 true 2>/dev/null || fail "a command runs in a dead node"
eventually linked || fail "the link of a killed node does not answer any more"
cluster revive node2 || fail "revive"
expect node2 "host name of a revived node" "$(cluster run node2 cat /proc/sys/kernel/hostname)"
! cluster run node2 test -e /dev/shm/mark || fail "a revived node has its old /dev/shm"

cluster run node1 sleep 1000 &
eventually shown node1 || fail "show does not show a process"
pids=$(for node in head node1 node2; do ip netns pids "evenkeel.$EVENKEEL_CLUSTER.$node"; done)
cluster down || fail "down"
eventually nothing_left || fail "down left: $(leftovers)"
cluster down || fail "down of nothing"

# What a crash leaves: namespaces and processes without a description.
cluster up --nodes 2 || fail "a second up"
pids=$(for node in head node1 node2; do ip netns pids "evenkeel.$EVENKEEL_CLUSTER.$node"; done)
rm -rf "$EVENKEEL_CLUSTER_DIR"
cluster down || fail "down after a crash"
eventually nothing_left || fail "down after a crash left: $(leftovers)"
echo "passed"
