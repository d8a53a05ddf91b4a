package startup

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/nstest"
)

func inode(t *testing.T, ns string) uint64 {
	t.Helper()
	n, err := netns.Inode(ns)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// swaps skips a test on a kernel that cannot mount beneath a mount.
func swaps(t *testing.T) {
	t.Helper()
	if !netns.HasBeneath() {
		t.Skip("the kernel has no MOVE_MOUNT_BENEATH (6.5)")
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not: " + what)
		}
	}
}

// awaitUserns waits until a process has its own user and network namespaces.
func awaitUserns(t *testing.T, pid int) {
	t.Helper()
	ours, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has a namespace of its own", func() bool {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err == nil && ours != theirs
	})
}

// A pooled namespace replaces the runtime's.
func TestSwap(t *testing.T) {
	swaps(t)
	b := newBed(t)
	b.withPool(2)
	pod := nstest.New(t)
	before := inode(t, pod)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	if inode(t, pod) == before {
		t.Fatalf("the namespace was not replaced: %+v", b.state())
	}
	b.ping(pod)
	if out := nstest.Run(t, pod, "ip -br link show lo"); !strings.Contains(out, "UP") {
		t.Errorf("lo: %s", out)
	}
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
	if s := b.state(); len(s.Attachments) != 0 || s.HandedOver != 1 {
		t.Errorf("%+v", s)
	}
	b.stop()
	b.wantNothing()
	if out := nstest.Run(t, b.host, "ip -br link"); strings.Contains(out, "br0") {
		t.Errorf("the bridge is left: %s", out)
	}
}

// No container gets a namespace that another one had, or that a pooled one has replaced: what was set
// there, and who still holds it, reach no other container.
func TestNamespaceIsNotUsedAgain(t *testing.T) {
	swaps(t)
	b := newBed(t)
	b.withPool(1)
	pod := nstest.New(t)
	used := make(map[uint64]bool)
	hold := func() { // its number is given to no other one meanwhile
		f, err := os.Open(netns.Path(pod))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		used[inode(t, pod)] = true
	}
	hold()
	traces := []struct{ set, show, trace string }{
		{"sysctl -qw net.ipv4.tcp_mtu_probing=2", "sysctl net.ipv4.tcp_mtu_probing", "= 2"},
		{"sysctl -qw net.ipv4.conf.lo.accept_local=1", "sysctl net.ipv4.conf.lo.accept_local", "= 1"},
		{"sysctl -qw net.ipv6.conf.default.hop_limit=77", "sysctl net.ipv6.conf.default.hop_limit", "77"},
		{"sysctl -qw net.unix.max_dgram_qlen=777", "sysctl net.unix.max_dgram_qlen", "777"},
		{"nft add table inet trace", "nft list tables", "trace"},
		{"ip rule add fwmark 0x777 lookup 77", "ip rule", "0x777"},
		{"ip addr add 192.0.2.7/32 dev lo", "ip addr show dev lo", "192.0.2.7"},
		{"ip link set lo up mtu 7777", "ip link show dev lo", "7777"},
		{"ip route add 198.51.100.0/24 dev lo table 77", "ip route show table all", "198.51.100.0"},
		{"ip neigh add 192.0.2.8 lladdr 02:00:00:00:00:07 dev lo nud permanent", "ip neigh show dev lo", "02:00:00:00:00:07"},
		{"tc qdisc add dev lo root handle 77: pfifo", "tc qdisc show dev lo", "77:"},
		{"ip netns set " + nstest.New(t) + " 77", "ip netns list-id", "77"},
	}
	for _, c := range traces {
		nstest.Run(t, pod, c.set)
		if out := nstest.Run(t, pod, c.show); !strings.Contains(out, c.trace) {
			t.Fatalf("%s: no %s in %s", c.set, c.trace, out)
		}
	}
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	hold()
	for _, c := range traces {
		nstest.Run(t, pod, c.set)
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
	if out := nstest.Run(t, pod, "ip -br link"); strings.Contains(out, "eth0") {
		t.Errorf("who holds the namespace has %s", out)
	}
	for i := range 3 {
		if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: 1}); err != nil {
			t.Fatal(err)
		}
		next := nstest.New(t)
		b.want(b.cni("ADD", fmt.Sprint("next", i), netns.Path(next), b.conf()))
		if used[inode(t, next)] {
			t.Error("it has a namespace of the first one")
		}
		for _, c := range traces {
			if out := nstest.Run(t, next, c.show); strings.Contains(out, c.trace) {
				t.Errorf("after %s in the first one: %s", c.set, out)
			}
		}
	}
	if s := b.state(); s.HandedOver != 4 || len(used) != 2 {
		t.Errorf("%d were handed over, in place: %v", s.HandedOver, s.InPlace)
	}
}

// More containers than the pool holds start at once: all get a network.
func TestPoolEmpty(t *testing.T) {
	b := newBed(t)
	b.withPool(3)
	var pods []string
	for range 12 {
		pods = append(pods, nstest.New(t))
	}
	conf := b.conf()
	answers := make([]answer, len(pods))
	var all sync.WaitGroup
	for i, pod := range pods {
		all.Go(func() { answers[i] = b.cni("ADD", fmt.Sprint(i), netns.Path(pod), conf) })
	}
	all.Wait()
	for i, pod := range pods {
		b.want(answers[i])
		b.ping(pod)
	}
	addresses := make(map[string]bool)
	for _, a := range b.state().Attachments {
		addresses[a.Addresses[0]] = true
	}
	if len(addresses) != len(pods) {
		t.Errorf("%d addresses for %d containers", len(addresses), len(pods))
	}
	if s := b.state(); netns.HasBeneath() && s.HandedOver < 3 || s.HandedOver+s.InPlace["the pool is empty"] != 12 && netns.HasBeneath() {
		t.Errorf("%d handed over, in place: %v", s.HandedOver, s.InPlace)
	}
	for i, pod := range pods {
		b.want(b.cni("DEL", fmt.Sprint(i), netns.Path(pod), conf))
	}
	b.stop()
	b.wantNothing()
}

// If a namespace cannot be replaced, the device is made in it.
func TestInPlace(t *testing.T) {
	swaps(t)
	b := newBed(t)
	b.withPool(2)
	other := exec.Command("unshare", "--user", "--map-root-user", "--net", "sleep", "infinity")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	process := fmt.Sprintf("/proc/%d/ns/net", other.Process.Pid)
	awaitUserns(t, other.Process.Pid)
	foreign := fmt.Sprintf("scon-t%d-foreign", os.Getpid())
	if err := netns.Attach(foreign, process); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Delete(foreign) })
	busy := nstest.New(t)
	nstest.Run(t, busy, "ip link add d0 type bridge")
	// Like an engine that starts a process to keep the namespace before ADD.
	inhabited := nstest.New(t)
	pause := exec.Command("sleep", "infinity")
	nstest.Do(t, inhabited, func() {
		if err := pause.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = pause.Process.Kill(); _ = pause.Wait() })

	tuned := nstest.New(t)
	nstest.Run(t, tuned, "sysctl -qw net.ipv4.ip_unprivileged_port_start=7")

	for want, c := range map[string]struct {
		path, conf string
		env        string
	}{
		"handOver is none":                      {netns.Path(nstest.New(t)), b.conf(`"handOver": "none"`), ""},
		"it has a bandwidth of its own":         {netns.Path(nstest.New(t)), b.conf(`"runtimeConfig": {"bandwidth": {"ingressRate": 8000000}}`), ""},
		"its device has another name than eth0": {netns.Path(nstest.New(t)), b.conf(), "CNI_IFNAME=net1"},
		"or a process holds it":                 {process, b.conf(), ""},
		"belongs to another user namespace":     {netns.Path(foreign), b.conf(), ""},
		"its namespace has devices already":     {netns.Path(busy), b.conf(), ""},
		"its namespace has sysctls of its own":  {netns.Path(tuned), b.conf(), ""},
		"a process is in its namespace already": {netns.Path(inhabited), b.conf(), ""},
	} {
		t.Run(want, func(t *testing.T) {
			id := strings.ReplaceAll(strings.TrimSpace(want), " ", "-")
			b.want(b.cni("ADD", id, c.path, c.conf, c.env))
			nstest.Run(t, c.path, "ping -n -q -c 1 -W 5 10.88.0.1")
			b.want(b.cni("DEL", id, c.path, c.conf, c.env))
			found := false
			for why := range b.state().InPlace {
				found = found || strings.Contains(why, want)
			}
			if !found {
				t.Errorf("in place because: %v", b.state().InPlace)
			}
		})
	}
}

// Devices that the kernel makes in each namespace do not count.
func TestGivenDevices(t *testing.T) {
	const headings = "Inter-|   Receive       |  Transmit\n face |bytes    packets|bytes    packets\n"
	for devices, want := range map[string]bool{
		"    lo:       0       0       0       0\n":                                                   true,
		"  sit0:       0       0       0       0\n    lo:       0       0\n tunl0:       0       0\n": true,
		"    lo:       0       0\n  sit1:       0       0\n":                                          false,
		"    lo:       0       0\neth0:  123456       9\n":                                            false,
	} {
		if got := hasOnlyGiven(headings + devices); got != want {
			t.Errorf("%q: %v", devices, got)
		}
	}
}

// oci runs scon-oci with a runtime that does nothing.
func (b *bed) oci(runtime string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, "scon-oci"), append([]string{"--scon-socket", b.socket(), "--scon-runtime", runtime}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func writeBundle(t *testing.T, spec string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

const spec = `{"ociVersion": "1.0.2", "big": 12345678901234567890, "annotations": {%s}, "process": {"env": ["A=b"]},
	"linux": {"cgroupsPath": "/x", "namespaces": [{"type": "pid"}, {"type": "network"}%s]}}`

// netnsOf returns the path of the network namespace in a bundle.
func netnsOf(t *testing.T, dir string) (path string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "12345678901234567890") {
		t.Errorf("other keys have changed: %s", b)
	}
	var doc struct {
		Linux struct {
			CgroupsPath string
			Namespaces  []struct{ Type, Path string }
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil || doc.Linux.CgroupsPath != "/x" {
		t.Fatalf("%s: %v", b, err)
	}
	for _, n := range doc.Linux.Namespaces {
		if n.Type == "network" {
			path = n.Path
		}
	}
	return path
}

// scon-oci writes a pooled namespace into a container's configuration, and removes it when the
// container is deleted.
func TestOCI(t *testing.T) {
	b := newBed(t)
	b.withPool(1)
	calls := filepath.Join(b.dir, "calls")
	runtime := filepath.Join(b.dir, "runtime")
	script := "#!/bin/sh\necho \"$@\" >>" + calls + "\n[ ! -e " + b.dir + "/fail ] || exit 7\n"
	if err := os.WriteFile(runtime, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	const wanted = `"scon.network": "net"`
	for i := range 3 { // the first from the pool, another perhaps made for it
		id, dir := fmt.Sprint("c", i), writeBundle(t, fmt.Sprintf(spec, wanted, ""))
		if out, err := b.oci(runtime, "--root", "/r", "create", "--bundle", dir, "--pid-file", "p", id); err != nil {
			t.Fatal(err, out)
		}
		path := netnsOf(t, dir)
		if path == "" {
			t.Fatal("no path")
		}
		nstest.Run(t, path, "ping -n -q -c 1 -W 5 10.88.0.1")
		for _, verb := range []string{"start", "state", "delete"} {
			if out, err := b.oci(runtime, "--root", "/r", verb, id); err != nil {
				t.Fatal(err, out)
			}
		}
		eventually(t, "the namespace is gone", func() bool { return len(b.state().Attachments) == 0 })
		if _, err := os.Stat(path); err == nil {
			t.Error("its name is left")
		}
	}
	text, err := os.ReadFile(calls)
	if err != nil || !strings.HasPrefix(string(text), "--root /r create --bundle ") || strings.Count(string(text), "\n") != 12 {
		t.Errorf("%s %v", text, err)
	}
	s := b.state()
	for _, stage := range []string{"cgroup", "start_vm"} {
		if s.Stages[stage].Ended != 3 || s.Stages[stage].Inside != 0 {
			t.Errorf("%s: %+v", stage, s.Stages[stage])
		}
	}

	// A container that names no network, or has a namespace, stays unchanged; errors are reported.
	dir := writeBundle(t, fmt.Sprintf(spec, "", ""))
	if out, err := b.oci(runtime, "create", "--bundle", dir, "plain"); err != nil || netnsOf(t, dir) != "" {
		t.Error(err, out)
	}
	dir = writeBundle(t, fmt.Sprintf(spec, `"scon.network": "nowhere"`, ""))
	log := filepath.Join(b.dir, "log.json")
	if out, err := b.oci(runtime, "--log", log, "--log-format", "json", "create", "--bundle", dir, "lost"); err == nil || !strings.Contains(out, `"nowhere" is not known`) {
		t.Error(err, out)
	}
	var logged struct{ Level, Msg string }
	if text, err := os.ReadFile(log); err != nil || json.Unmarshal(text, &logged) != nil || logged.Level != "error" || !strings.Contains(logged.Msg, `"nowhere" is not known`) {
		t.Errorf("logged: %s, %v", text, err)
	}
	if err := os.WriteFile(b.dir+"/fail", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir = writeBundle(t, fmt.Sprintf(spec, wanted, ""))
	out, err := b.oci(runtime, "create", "--bundle", dir, "broken")
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 7 {
		t.Errorf("%v %s", err, out)
	}
	eventually(t, "nothing of it is left", func() bool { return len(b.state().Attachments) == 0 })
	b.stop()
	b.wantNothing()
}

// A container with its own user namespace gets its device in place.
func TestOCIUserNamespace(t *testing.T) {
	b := newBed(t)
	b.withPool(1)
	process := exec.Command("unshare", "--user", "--map-root-user", "--net", "sleep", "infinity")
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	ns := fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid)
	awaitUserns(t, process.Process.Pid)
	dir := writeBundle(t, fmt.Sprintf(spec, `"scon.network": "net"`, `, {"type": "user"}`))
	pidFile := filepath.Join(dir, "pid")
	if err := os.WriteFile(pidFile, fmt.Append(nil, process.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := b.oci("/bin/true", "create", "--bundle", dir, "--pid-file", pidFile, "u"); err != nil || netnsOf(t, dir) != "" {
		t.Fatal(err, out)
	}
	if out, err := b.oci("/bin/true", "start", "u"); err != nil {
		t.Fatal(err, out)
	}
	nstest.Run(t, ns, "ping -n -q -c 1 -W 5 10.88.0.1")
	if out, err := b.oci("/bin/true", "delete", "u"); err != nil {
		t.Fatal(err, out)
	}
	eventually(t, "it is gone", func() bool { return len(b.state().Attachments) == 0 })
}
