#!/bin/sh
# First process of a node, in mount, network and PID namespaces of its own; all that it
# starts ends with it. The environment has NODE (1 or 2), DIR (of the cluster), BIN (of
# hyper) and GROUP (its cgroup). The test's Go part has written all files.
set -eu
own=$DIR/node$NODE other=$((3 - NODE))

mount --make-rshared /
mount -t tmpfs none /run/netns
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/containerd
mount -t tmpfs none /run/containerd
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
ip addr add "10.200.0.1$NODE/24" dev eth0
ip link set eth0 up
ip route add default via 10.200.0.1
ip route add "10.244.$other.0/24" via "10.200.0.1$other"
sysctl -qw net.ipv4.ip_forward=1
for hierarchy in /sys/fs/cgroup/*/; do # version 1
	mkdir -p "$hierarchy$GROUP"
done
if [ -e /sys/fs/cgroup/cpuset/cpuset.cpus ]; then
	for file in cpus mems; do
		cat "/sys/fs/cgroup/cpuset/cpuset.$file" >"/sys/fs/cgroup/cpuset/$GROUP/cpuset.$file"
	done
fi

# keep runs a command again whenever it ends, as systemd does.
keep() { # NAME COMMAND...
	log=$own/$1.log
	shift
	while :; do
		"$@" || true
		sleep 1
	done >"$log" 2>&1 &
}

kubectl() { "$BIN/hyper" kubectl --kubeconfig "$DIR/admin.kubeconfig" "$@"; }

if [ "$NODE" = 1 ]; then
	keep etcd etcd --data-dir "$own/etcd" --unsafe-no-fsync --log-level warn
	keep apiserver "$BIN/hyper" kube-apiserver --etcd-servers http://127.0.0.1:2379 \
		--service-cluster-ip-range 10.96.0.0/16 --advertise-address 10.200.0.11 --allow-privileged \
		--tls-cert-file "$DIR/api.crt" --tls-private-key-file "$DIR/api.key" --client-ca-file "$DIR/ca.crt" \
		--token-auth-file "$DIR/tokens.csv" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
		--service-account-issuer https://kubernetes.default.svc --service-account-key-file "$DIR/sa.key" \
		--service-account-signing-key-file "$DIR/sa.key" --kubelet-preferred-address-types InternalIP \
		--kubelet-client-certificate "$DIR/kubelet.crt" --kubelet-client-key "$DIR/kubelet.key"
	until kubectl get --raw /readyz >/dev/null 2>&1; do sleep 0.3; done
	for name in manager scheduler; do
		case $name in
		manager) set -- kube-controller-manager --service-account-private-key-file "$DIR/sa.key" --root-ca-file "$DIR/ca.crt" --use-service-account-credentials ;;
		scheduler) set -- kube-scheduler ;;
		esac
		keep "$name" "$BIN/hyper" "$@" --leader-elect=false --kubeconfig "$DIR/$name.kubeconfig" \
			--authentication-kubeconfig "$DIR/$name.kubeconfig" --authorization-kubeconfig "$DIR/$name.kubeconfig"
	done
	kubectl create clusterrolebinding kube-proxy --clusterrole system:node-proxier --user system:kube-proxy
fi
keep containerd containerd --config "$own/containerd.toml"
until ctr -a "$own/containerd.sock" version >/dev/null 2>&1; do sleep 0.2; done
for image in "$DIR"/images/*.tar; do
	ctr -a "$own/containerd.sock" -n k8s.io images import "$image" >>"$own/images.log" 2>&1
done
keep kubelet "$BIN/hyper" kubelet --config "$own/kubelet.yaml" --kubeconfig "$DIR/node$NODE.kubeconfig" \
	--hostname-override "node$NODE" --node-ip "10.200.0.1$NODE" --root-dir "$own/kubelet" --cert-dir "$own/pki"
until kubectl get node "node$NODE" >/dev/null 2>&1; do sleep 0.5; done
keep proxy "$BIN/hyper" kube-proxy --config "$own/proxy.yaml"
wait
