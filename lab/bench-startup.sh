#!/bin/sh
# Measures everything that documents say of starting containers, and rewrites the
# summaries lab/results/startup.json. Results with all samples, and plots, go to
# bin/results/. Takes about an hour on two idle CPUs. lab/docs/startup-measuring.md says
# what is measured.
#
# Usage: lab/bench-startup.sh [EXPERIMENT...]      all, or some of
#        tune modes hundred qos kinds log rate cri runsc microvm
set -eu

cd "$(dirname "$0")/.."
scripts/install-deps.sh startup
make build
mkdir -p bin/results

# bench NAME FLAGS...
bench() {
	name=$1 && shift
	echo "== $name"
	bin/scon startup bench --tuned bin/results/tuned.json --json "bin/results/$name.json" --plots "bin/results/$name" "$@"
	bin/scon bench summary lab/results/startup.json "bin/results/$name.json"
}

modes=none,noop,bridge,ptp,macvlan,scon-nopool,scon-pool,scon-pool+oci,scon-pool+admission
few=none,noop,bridge,scon-nopool,scon-pool

[ $# -gt 0 ] || set -- tune modes hundred qos kinds log rate cri runsc microvm
for experiment in "$@"; do
	case $experiment in
	# Before the others, which use what it finds.
	tune)
		echo "== tune"
		bin/scon startup tune --count 50 --trials 25 --checks 10 --others 25,100 \
			--tuned bin/results/tuned.json --json lab/results/startup-tune.json
		;;
	modes) bench startup --network $modes --count 50 --rounds 10 ;;
	hundred)
		bench startup-100 --network none,bridge,scon-nopool,scon-nopool+admission,scon-pool,scon-pool+admission \
			--count 100 --rounds 10 --steps start
		;;
	qos)
		bench startup-qos --count 50 --rounds 5 --steps start --network none,bridge,bridge+qos,scon-nopool,scon-nopool+qos,scon-pool,scon-pool+qos,scon-nopool+rules=10,scon-nopool+rules=100,scon-pool+rules=10,scon-pool+rules=100
		;;
	kinds)
		bench startup-kinds --count 50 --rounds 5 --steps start --network none,scon-nopool,scon-pool,scon-nopool+kind=ptp,scon-pool+kind=ptp,scon-nopool+kind=macvlan,scon-pool+kind=macvlan,scon-nopool+kind=tc-routing,scon-pool+kind=tc-routing,scon-nopool+tenants=10,scon-nopool+kind=tc-routing+tenants=10
		;;
	log)
		echo "== stage-log"
		scripts/with-own-mounts.sh go test -vet=off ./internal/startup -run TestStageLogCost -stage-log-cost "$PWD/lab/results/stage-log.json"
		;;
	rate) bench startup-rate --network $few --count 50 --rounds 5 --steps sustained,quiet ;;
	cri) bench startup-cri --launcher cri --network $few --count 20 --rounds 5 --steps start ;;
	runsc) bench startup-runsc --runtime runsc --network $few --count 20 --rounds 5 --steps start ;;
	microvm) bench startup-microvm --runtime microvm --network $few --count 4 --rounds 5 --steps start ;;
	*) echo "bench-startup.sh: no experiment \"$experiment\"" >&2 && exit 2 ;;
	esac
done
