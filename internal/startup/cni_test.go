package startup

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// libcni, which runtimes use, gets the specified result for every verb of every version.
func TestLibcni(t *testing.T) {
	b := newBed(t)
	b.start()
	for i, v := range version.All.SupportedVersions() {
		t.Run(v, func(t *testing.T) {
			pod := nstest.New(t)
			lib := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), nil)
			conf := strings.Replace(b.conf(), "1.1.0", v, 1)
			list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": %q, "name": "net", "plugins": [%s]}`, v, conf))
			if err != nil {
				t.Fatal(err)
			}
			rt := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("c%d", i), NetNS: netns.Path(pod), IfName: "eth0"}
			ctx := context.Background()
			in := func(what string, do func() error) {
				t.Helper()
				nstest.Do(t, b.host, func() {
					if err := do(); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				})
			}
			has := func(since string) bool {
				ok, err := version.GreaterThanOrEqualTo(v, since)
				return ok && err == nil
			}

			in("VERSION", func() error {
				_, err := lib.ValidateNetworkList(ctx, list)
				return err
			})
			if has("1.1.0") {
				in("STATUS", func() error { return lib.GetStatusNetworkList(ctx, list) })
			}
			var result types.Result
			in("ADD", func() (err error) {
				result, err = lib.AddNetworkList(ctx, list, rt)
				return err
			})
			if result.Version() != v {
				t.Errorf("the result has version %s", result.Version())
			}
			current, err := types100.GetResult(result)
			if err != nil {
				t.Fatal(err)
			}
			if len(current.IPs) != 1 || !current.IPs[0].Gateway.Equal(net.IPv4(10, 88, 0, 1)) || len(current.Routes) != 1 {
				t.Errorf("result: %v", result)
			}
			if has("0.3.0") && (len(current.Interfaces) != 3 || current.Interfaces[*current.IPs[0].Interface].Sandbox != rt.NetNS) {
				t.Errorf("interfaces: %v", current.Interfaces)
			}
			b.ping(pod)
			if has("0.4.0") {
				in("CHECK", func() error { return lib.CheckNetworkList(ctx, list, rt) })
			}
			if has("1.1.0") {
				keep := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: rt.ContainerID, IfName: "eth0"}}}
				in("GC", func() error { return lib.GCNetworkList(ctx, list, keep) })
				b.ping(pod)
			}
			in("DEL", func() error { return lib.DelNetworkList(ctx, list, rt) })
			in("DEL", func() error { return lib.DelNetworkList(ctx, list, rt) })
			b.wantNothing()
		})
	}
}

// Later plugins of the CNI project accept scon-cni's result, also if the namespace is
// replaced by another one.
func TestChained(t *testing.T) {
	for name, ready := range map[string]int{"in place": 0, "pooled": 1} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.withPool(ready)
			pod := nstest.New(t)
			lib := libcni.NewCNIConfigWithCacheDir([]string{bin, "/usr/lib/cni"}, t.TempDir(), nil)
			list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
				%s,
				{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
				{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000},
				{"type": "firewall", "backend": "iptables"},
				{"type": "tuning", "mac": "0a:58:00:00:00:07", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}}]}`, b.conf()))
			if err != nil {
				t.Fatal(err)
			}
			rt := &libcni.RuntimeConf{
				ContainerID: "c", NetNS: netns.Path(pod), IfName: "eth0",
				CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
			}
			in := func(what string, do func() error) {
				t.Helper()
				nstest.Do(t, b.host, func() {
					if err := do(); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				})
			}
			ctx := context.Background()
			var last types.Result
			in("ADD", func() (err error) {
				last, err = lib.AddNetworkList(ctx, list, rt)
				return err
			})
			b.ping(pod)
			// Not in the list: portmap of Debian 12 reads IPv6 rules that it has not made.
			result, err := json.Marshal(last)
			if err != nil {
				t.Fatal(err)
			}
			b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf(`"prevResult": `+string(result))))
			if a := b.cni("CHECK", "c", netns.Path(pod), b.conf()); a.code != 1 || !strings.Contains(a.out, "has MAC address 0a:58:00:00:00:07") {
				t.Errorf("CHECK of what ADD made: %s", a.out)
			}
			wrong := strings.Replace(string(result), `"10.88.0.`, `"10.88.0.19`, 1)
			if a := b.cni("CHECK", "c", netns.Path(pod), b.conf(`"prevResult": `+wrong)); a.code != 1 || !strings.Contains(a.out, "lacks its address 10.88.0.19") {
				t.Errorf("CHECK of another address: %s", a.out)
			}
			if out := nstest.Run(t, pod, "cat /proc/sys/net/ipv4/conf/eth0/arp_filter"); strings.TrimSpace(out) != "1" {
				t.Errorf("tuning: %s", out)
			}
			for command, want := range map[string]string{"iptables-save": "10.88.0.", "tc qdisc show dev " + b.devices()[0]: "rate 8Mbit"} {
				if out := nstest.Run(t, b.host, command); !strings.Contains(out, want) {
					t.Errorf("%s: %s, want %s", command, out, want)
				}
			}
			if s := b.state(); netns.HasBeneath() && int(s.HandedOver) != ready {
				t.Errorf("%d handed over, in place: %v", s.HandedOver, s.InPlace)
			}
			in("DEL", func() error { return lib.DelNetworkList(ctx, list, rt) })
			if out := nstest.Run(t, b.host, "iptables-save"); strings.Contains(out, "10.88.0.") || strings.Contains(out, "8080") {
				t.Errorf("left: %s", out)
			}
			b.stop()
			b.wantNothing()
		})
	}
}

// CHECK detects damage in the container and on the host. HOST stands for the container's
// end on the host, ADDRESS for its address.
func TestCheck(t *testing.T) {
	b := newBed(t)
	b.start()
	more := `"tap": true, "qos": {"ingressRate": 8000000, "egressRate": 8000000},
		"rules": [{"direction": "ingress", "protocol": "icmp"}, {"direction": "egress"}]`
	conf := b.conf(more)
	for what, damage := range map[string]struct{ inside, host string }{
		"eth0 of the container lacks its address": {"ip addr flush dev eth0", ""},
		"own end: device eth0 is down":            {"ip link set eth0 down", ""},
		"lacks its route to 0.0.0.0/0":            {"ip route del default", ""},
		"has MAC address 0a:58:00:00:00:01":       {"ip link set eth0 address 0a:58:00:00:00:01", ""},
		"device eth0 lacks its rate limit":        {"tc qdisc del dev eth0 root", ""},
		"device tap0: Link not found":             {"ip link del tap0", ""},
		"eth0 lacks its redirection":              {"tc qdisc del dev eth0 ingress", ""},
		"end on the host: find":                   {"ip link del eth0", ""},
		"end on the host: device":                 {"", "ip link set HOST down"},
		"is not a port of bridge br0":             {"", "ip link set HOST nomaster"},
		"lacks its rate limit":                    {"", "tc qdisc del dev HOST root"},
		"lacks its rules for ingress":             {"", "nft delete element ip scon_groups ingress { ADDRESS }"},
		"bridge: device br0 is down":              {"", "ip link set br0 down"},
	} {
		t.Run(what, func(t *testing.T) {
			pod := nstest.New(t)
			path := netns.Path(pod)
			// A new network is prepared again.
			conf := strings.Replace(conf, `"name": "net"`, fmt.Sprintf(`"name": "net%d"`, len(b.state().Networks)), 1)
			b.want(b.cni("ADD", "c", path, conf))
			b.want(b.cni("CHECK", "c", path, conf))
			host := b.devices()[0]
			check := func() answer {
				nstest.Run(t, pod, damage.inside)
				nstest.Run(t, b.host, strings.NewReplacer("HOST", host, "ADDRESS", b.address("c")).Replace(damage.host))
				return b.cni("CHECK", "c", path, conf)
			}
			a := check()
			if a.code == 0 { // the agent looks for missing rules now and then, and has just restored them
				a = check()
			}
			if a.code != 1 || !strings.Contains(a.out, what) {
				t.Errorf("CHECK: %d %s", a.code, a.out)
			}
			b.want(b.cni("DEL", "c", path, conf))
			b.wantNothing()
		})
	}
	if a := b.cni("CHECK", "nobody", netns.Path(b.host), b.conf()); !strings.Contains(a.out, `"code":3`) {
		t.Errorf("CHECK of an unknown container: %s", a.out)
	}
}

// What a container has put into its namespace costs the agent no memory when it is checked.
func TestCheckOfMany(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	var routes strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&routes, "route add unicast 11.%d.%d.%d/32 dev eth0\n", i>>16, i>>8&255, i&255)
	}
	file := filepath.Join(b.dir, "routes")
	if err := os.WriteFile(file, []byte(routes.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, pod, "ip -batch "+file)
	most := func() (kb int) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.agent.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		if _, err := fmt.Sscan(rest, &kb); err != nil {
			t.Fatal(err)
		}
		return kb
	}
	before := most()
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
	if after := most(); after > before+32<<10 {
		t.Errorf("the agent's memory went from %d to %d KiB", before, after)
	}
}

// STATUS distinguishes a network in which no ADD succeeds from one whose containers have
// lost their connection.
func TestStatus(t *testing.T) {
	b := newBed(t)
	gateway := b.port()
	b.start()
	wants := func(conf, want string) {
		t.Helper()
		a := b.cni("STATUS", "", "", conf)
		if (a.code == 0) != (want == "") || !strings.Contains(a.out, want) {
			t.Errorf("STATUS: %d %s, want %q", a.code, a.out, want)
		}
	}
	macvlan := b.tenantConf("", 0, `"kind": "macvlan", "master": "m0"`)
	routing := b.tenantConf("", 1, `"kind": "ptp"`)
	bridge := b.tenantConf("", 2, `"bridge": "br9"`)
	for i, conf := range []string{macvlan, routing, bridge} {
		wants(conf, "")
		b.want(b.cni("ADD", fmt.Sprint(i), netns.Path(nstest.New(t)), conf))
		wants(conf, "")
	}
	nstest.Run(t, b.host, "ip link set br9 down")
	wants(bridge, `"code":51`)
	nstest.Run(t, b.host, "ip link set br9 up")
	wants(bridge, "")
	nstest.Run(t, b.host, "ip link del br9")
	wants(bridge, `"code":51`)
	nstest.Run(t, gateway, "ip link del g0") // and m0 with it
	wants(macvlan, `"code":51`)
	b.want(b.cni("DEL", "0", "", macvlan))
	wants(macvlan, `"code":50`)
	wants(routing, "")
	b.want(b.cni("DEL", "2", "", bridge))
	wants(bridge, "") // an ADD would make it again
}

// GC removes the attachments that the runtime does not list, and no others.
func TestGC(t *testing.T) {
	b := newBed(t)
	b.start()
	one, two := nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "one", netns.Path(one), b.conf()))
	b.want(b.cni("ADD", "two", netns.Path(two), b.conf()))
	b.want(b.cni("GC", "", "", b.conf(`"cni.dev/valid-attachments": [{"containerID": "two", "ifname": "eth0"}]`)))
	if n := len(b.devices()); n != 1 {
		t.Errorf("%d devices are left", n)
	}
	b.ping(two)
	// The early name in the specification.
	b.want(b.cni("GC", "", "", b.conf(`"cni.dev/attachments": [{"containerID": "two", "ifname": "eth0"}]`)))
	b.ping(two)
	for _, absent := range []string{b.conf(), b.conf(`"cni.dev/valid-attachments": null`)} {
		if a := b.cni("GC", "", "", absent); a.code == 0 || !strings.Contains(a.out, `"code":7`) {
			t.Errorf("GC without the list: %d %s", a.code, a.out)
		}
	}
	b.ping(two)
	b.want(b.cni("GC", "", "", b.conf(`"cni.dev/valid-attachments": []`)))
	if n := len(b.devices()); n != 0 {
		t.Errorf("%d devices are left after GC with an empty list", n)
	}
}

// Invalid requests are refused with the specified code.
func TestRefusals(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := netns.Path(nstest.New(t))
	fifo := filepath.Join(b.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		verb, id, netns, conf, want string
	}{
		"no such verb":       {"FETCH", "c", pod, b.conf(), `"code":4`},
		"no container":       {"ADD", "", pod, b.conf(), `CNI_CONTAINERID] missing`},
		"bad container":      {"ADD", "a/b", pod, b.conf(), `"code":4`},
		"no netns":           {"ADD", "c", "", b.conf(), `CNI_NETNS] missing`},
		"vanished namespace": {"ADD", "c", "/run/netns/gone", b.conf(), `"code":8`},
		"no namespace":       {"ADD", "c", "/dev/null", b.conf(), `"code":8`},
		"a FIFO":             {"ADD", "c", fifo, b.conf(), `"code":8`},
		"the host's":         {"ADD", "c", netns.Path(b.host), b.conf(), `is the host's`},
		"no JSON":            {"ADD", "c", pod, "{", `"code":6`},
		"unknown version":    {"ADD", "c", pod, strings.Replace(b.conf(), "1.1.0", "9.0.0", 1), `"code":1`},
		"CHECK of old":       {"CHECK", "c", pod, strings.Replace(b.conf(), "1.1.0", "0.3.1", 1), `has no CHECK`},
		"typing error":       {"ADD", "c", pod, b.conf(`"isGatway": true`), `did you mean \"isGateway\"`},
		"kind":               {"ADD", "c", pod, b.conf(`"kind": "vteh"`), `want veth or ptp`},
		"mtu":                {"ADD", "c", pod, b.conf(`"mtu": 20`), `68..65535`},
	} {
		t.Run(name, func(t *testing.T) {
			if a := b.cni(c.verb, c.id, c.netns, c.conf); a.code != 1 || !strings.Contains(a.out, c.want) {
				t.Errorf("%d %s, want %s in it", a.code, a.out, c.want)
			}
		})
	}
	for want, a := range map[string]answer{
		"already has a device lo": b.cni("ADD", "c", pod, b.conf(), "CNI_IFNAME=lo"),
		"HTTP status 431":         b.cni("ADD", "c", pod, b.conf(), "CNI_ARGS="+strings.Repeat("A=b;", 5000)),
		"treats as a pattern":     b.cni("ADD", "c", pod, b.conf(), "CNI_IFNAME=eth%d"),
		"too large":               b.cni("ADD", "c", pod, b.conf(fmt.Sprintf(`"args": %q`, strings.Repeat("x", 2<<20)))),
	} {
		if a.code != 1 || !strings.Contains(a.out, want) || !strings.Contains(a.out, `"code":`) {
			t.Errorf("%d %s, want %s in it", a.code, a.out, want)
		}
	}
	b.wantNothing()
}

// DEL needs only the network's name of a configuration: ADD may have been refused for the
// rest, or the file may have changed since.
func TestDelWithInvalidConfiguration(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	invalid := b.conf(`"mtu": 20`)
	if a := b.cni("ADD", "c", netns.Path(pod), invalid); a.code != 1 || !strings.Contains(a.out, `"code":7`) {
		t.Errorf("ADD: %s", a.out)
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), invalid))
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.want(b.cni("DEL", "c", netns.Path(pod), invalid))
	b.wantNothing()
	b.kill()
	b.want(b.cni("DEL", "c", netns.Path(pod), invalid))
}

// A value that equals a key's name is not a key.
func TestNameOfKey(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	conf := strings.Replace(b.conf(), `"name": "net"`, `"name": "socket"`, 1)
	b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	b.want(b.cni("DEL", "c", netns.Path(pod), conf))
}

// Networks with the same addresses on one bridge never lease an address twice.
func TestSameRange(t *testing.T) {
	b := newBed(t)
	b.start()
	other := strings.Replace(b.conf(), `"name": "net"`, `"name": "other"`, 1)
	confs := []string{b.conf(), other, b.conf(), other}
	for i, conf := range confs {
		if i == 2 { // also if the agent knows only one of them
			b.kill()
			b.start()
		}
		b.want(b.cni("ADD", fmt.Sprint(i), netns.Path(nstest.New(t)), conf))
	}
	addresses := make(map[string]bool)
	for i := range confs {
		addresses[b.address(fmt.Sprint(i))] = true
	}
	if len(addresses) != len(confs) {
		t.Errorf("containers share addresses: %v", addresses)
	}
	for i, conf := range confs {
		b.want(b.cni("DEL", fmt.Sprint(i), "", conf))
	}
	for _, n := range b.state().Networks {
		if n.Addresses != 0 {
			t.Errorf("network %s has leased %d addresses, and no container", n.Name, n.Addresses)
		}
	}
	b.wantNothing()
}

// A container may have two devices: the first keeps its routes after the second is
// removed.
func TestTwoDevices(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	conf := strings.Replace(b.conf(), `"subnet": "10.88.0.0/24", "routes": [`, `"subnet": "10.88.0.0/24", "ranges": [[{"subnet": "fd00:88::/64"}]], "routes": [{"dst": "::/0"}, `, 1)
	b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	b.want(b.cni("ADD", "c", netns.Path(pod), conf, "CNI_IFNAME=eth1"))
	for _, device := range []string{"eth0", "eth1"} {
		b.want(b.cni("CHECK", "c", netns.Path(pod), conf, "CNI_IFNAME="+device))
	}
	for _, outside := range []string{"1.1.1.1", "2001:db8::1"} {
		if out := nstest.Run(t, pod, "ip route get "+outside); !strings.Contains(out, "dev eth0") {
			t.Errorf("the first device's route is not the first: %s", out)
		}
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), conf, "CNI_IFNAME=eth1"))
	b.want(b.cni("CHECK", "c", netns.Path(pod), conf))
	b.ping(pod)
	nstest.Run(t, pod, "ping -n -q -c 1 -W 5 fd00:88::1")
}

// An exhausted range is refused and reported by STATUS, until a DEL frees an address.
func TestExhausted(t *testing.T) {
	b := newBed(t)
	b.start()
	conf := strings.Replace(b.conf(), `"subnet": "10.88.0.0/24"`, `"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.3"`, 1)
	for _, id := range []string{"a", "b"} {
		b.want(b.cni("STATUS", "", "", conf))
		b.want(b.cni("ADD", id, netns.Path(nstest.New(t)), conf))
	}
	for _, verb := range []string{"STATUS", "ADD"} {
		if a := b.cni(verb, "c", netns.Path(nstest.New(t)), conf); a.code != 1 || !strings.Contains(a.out, `"code":50`) {
			t.Errorf("%s: %d %s", verb, a.code, a.out)
		}
	}
	b.want(b.cni("DEL", "a", "", conf))
	b.want(b.cni("STATUS", "", "", conf))
	b.want(b.cni("ADD", "c", netns.Path(nstest.New(t)), conf))
}

// A container has precedence over the pool, which releases its addresses.
func TestExhaustedByPool(t *testing.T) {
	b := newBed(t)
	conf := strings.Replace(b.conf(), `"subnet": "10.88.0.0/24"`, `"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.5"`, 1)
	file := filepath.Join(b.dir, "net.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(configEnv + "=  networks: [" + file + "]\n  pool: {warm_target: 8}")
	eventually(t, "the pool has all addresses", func() bool { return b.state().Networks[0].Pool.Ready == 4 })
	b.want(b.cni("STATUS", "", "", conf))
	inPlace := strings.Replace(conf, `"type": "scon-cni"`, `"type": "scon-cni", "handOver": "none"`, 1)
	var answers [4]answer
	var all sync.WaitGroup
	for i := range answers {
		pod := nstest.New(t)
		all.Go(func() { answers[i] = b.cni("ADD", fmt.Sprint(i), netns.Path(pod), inPlace) })
	}
	all.Wait()
	for _, a := range answers {
		b.want(a)
	}
	for _, verb := range []string{"STATUS", "ADD"} {
		if a := b.cni(verb, "c", netns.Path(nstest.New(t)), conf); a.code != 1 || !strings.Contains(a.out, `"code":50`) {
			t.Errorf("%s: %d %s", verb, a.code, a.out)
		}
	}
}

// An agent does not start with two configurations of one network.
func TestNetworkTwice(t *testing.T) {
	b := newBed(t)
	var files []string
	for _, name := range []string{"a.conf", "b.conf"} {
		files = append(files, filepath.Join(b.dir, name))
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(b.conf()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(bin, "scon"), "agent", b.dir)
	cmd.Env = append(os.Environ(), configEnv+"=  networks: ["+strings.Join(files, ", ")+"]")
	nstest.Do(t, b.host, func() {
		want := files[0] + " and " + files[1] + " both configure network \"net\""
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %s, want %s", err, out, want)
		}
	})
}
