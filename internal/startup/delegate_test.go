package startup

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/test/bed/nstest"
)

// hostLocal is a network with the IPAM plugin host-local of the CNI project, in a version
// that Debian's supports.
func (b *bed) hostLocal(more ...string) string {
	own := `{"type": "scon", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}`
	theirs := fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}`, b.dir)
	return strings.Replace(strings.Replace(b.conf(more...), "1.1.0", "1.0.0", 1), own, theirs, 1)
}

// held returns the addresses that host-local has leased.
func (b *bed) held() []string {
	files, _ := filepath.Glob(filepath.Join(b.dir, "net", "10.88.*"))
	return files
}

// A stock IPAM plugin leases the addresses.
func TestDelegatedIPAM(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	conf := b.hostLocal(`"ipMasq": true`)
	out := b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	if !strings.Contains(out, `"address":"10.88.0.2/24"`) {
		t.Error(out)
	}
	// The host is the gateway of a subnet that only the plugin knows.
	b.ping(pod)
	if out := nstest.Run(t, b.host, "nft list table ip scon_startup"); !strings.Contains(out, "ip saddr 10.88.0.0/24") {
		t.Errorf("masquerading: %s", out)
	}
	b.want(b.cni("CHECK", "c", netns.Path(pod), conf))
	b.want(b.cni("DEL", "c", netns.Path(pod), conf))
	b.wantNothing()
	if out := b.want(b.cni("ADD", "d", netns.Path(pod), strings.Replace(conf, `"subnet": "10.88.0.0/24"`, `"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.3"`, 1))); !strings.Contains(out, `10.88.0.3/24`) {
		t.Error(out)
	}
	b.want(b.cni("DEL", "d", netns.Path(pod), conf))
	// The plugin receives the arguments of the container's engine.
	if out := b.want(b.cni("ADD", "e", netns.Path(pod), conf, "CNI_ARGS=IgnoreUnknown=1;IP=10.88.0.77")); !strings.Contains(out, `10.88.0.77/24`) {
		t.Error(out)
	}
	b.want(b.cni("DEL", "e", netns.Path(pod), conf))
	if a := b.cni("ADD", "d", netns.Path(pod), strings.Replace(conf, "host-local", "nowhere", 1)); !strings.Contains(a.out, "not in CNI_PATH") {
		t.Error(a.out)
	}
	if held := b.held(); len(held) > 0 || len(b.records()) > 0 {
		t.Errorf("left: %v %v", held, b.records())
	}
}

// An IPAM plugin need not name a gateway: the host has the address that the CNI project's plugin
// bridge would take. Without one, or of another address family, a route is on-link. An address is
// needed.
func TestDelegateWithoutGateway(t *testing.T) {
	b := newBed(t)
	b.start()
	static := func(kind, ipam string) string {
		conf := strings.Replace(b.conf(), "1.1.0", "1.0.0", 1)
		before, _, _ := strings.Cut(conf, `"ipam"`)
		if kind != cni.Veth {
			before = strings.Replace(before, `"bridge": "br0"`, fmt.Sprintf(`"kind": %q`, kind), 1)
		}
		return before + fmt.Sprintf(`"ipam": {"type": "static", %s}}`, ipam)
	}
	for _, kind := range []string{cni.Veth, cni.PtP} {
		pod := nstest.New(t)
		conf := static(kind, `"addresses": [{"address": "10.88.0.5/24"}, {"address": "fd00:88::5/64", "gateway": "fd00:88::9"}],
			"routes": [{"dst": "::/0"}, {"dst": "0.0.0.0/0"}]`)
		if out := b.want(b.cni("ADD", "c", netns.Path(pod), conf)); !strings.Contains(out, `"gateway":"10.88.0.1"`) {
			t.Errorf("%s: %s", kind, out)
		}
		b.ping(pod)
		for dst, want := range map[string]string{"1.1.1.1": "via 10.88.0.1 ", "2001:db8::1": "via fd00:88::9 "} {
			if out := nstest.Run(t, pod, "ip route get "+dst); !strings.Contains(out, want) {
				t.Errorf("%s: %s, want %s", kind, out, want)
			}
		}
		b.want(b.cni("DEL", "c", netns.Path(pod), conf))

		none := static(kind, `"addresses": []`)
		if a := b.cni("ADD", "d", netns.Path(pod), none); a.code != 1 || !strings.Contains(a.out, "got none") {
			t.Errorf("%s, no address: %d %s", kind, a.code, a.out)
		}
		if out := nstest.Run(t, pod, "ip -br link"); strings.Contains(out, "eth0") {
			t.Errorf("%s, no address: a device is left: %s", kind, out)
		}
	}
	both := nstest.New(t) // a subnet of two addresses: the host has the other one
	pair := static(cni.PtP, `"addresses": [{"address": "10.88.0.5/31"}]`)
	if out := b.want(b.cni("ADD", "f", netns.Path(both), pair)); !strings.Contains(out, `"gateway":"10.88.0.4"`) {
		t.Errorf("a subnet of two addresses: %s", out)
	}
	b.want(b.cni("DEL", "f", netns.Path(both), pair))
	onLink := strings.Replace(static(cni.Veth, `"addresses": [{"address": "10.88.0.5/24"}], "routes": [{"dst": "10.9.0.0/16"}]`), `"isGateway": true`, `"isGateway": false`, 1)
	pod := nstest.New(t)
	b.want(b.cni("ADD", "e", netns.Path(pod), onLink))
	if out := nstest.Run(t, pod, "ip route show 10.9.0.0/16"); strings.TrimSpace(out) != "10.9.0.0/16 dev eth0 scope link" {
		t.Errorf("a route without a gateway: %s", out)
	}
	b.want(b.cni("DEL", "e", netns.Path(pod), onLink))
	b.wantNothing()
}

// GC releases the addresses of attachments that are not listed, by DEL: a stock IPAM plugin
// that knows GC succeeds in it and releases none.
func TestDelegatedGC(t *testing.T) {
	b := newBed(t)
	b.start()
	plugins := t.TempDir()
	script := "#!/bin/sh\n[ $CNI_COMMAND = GC ] || exec /usr/lib/cni/host-local\n"
	if err := os.WriteFile(filepath.Join(plugins, "host-local"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	path := "CNI_PATH=" + plugins
	for _, id := range []string{"one", "two", "three"} {
		b.want(b.cni("ADD", id, netns.Path(nstest.New(t)), b.hostLocal(), path))
	}
	listed := b.hostLocal(`"cni.dev/valid-attachments": [{"containerID": "two", "ifname": "eth0"}]`)
	b.want(b.cni("GC", "", "", strings.Replace(listed, "1.0.0", "1.1.0", 1), path))
	if held := b.held(); len(held) != 1 || filepath.Base(held[0]) != "10.88.0.3" {
		t.Errorf("leased: %v", held)
	}
}

// A lease changes nothing in the configuration, which is the network's and that of later
// containers.
func TestDelegateLeavesConf(t *testing.T) {
	plugins := t.TempDir()
	script := `#!/bin/sh
echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.88.0.2/24", "gateway": "10.88.0.1"}],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.88.0.9"}], "dns": {"nameservers": ["10.88.0.1"]}}'
`
	if err := os.WriteFile(filepath.Join(plugins, "host-local"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	read := func() *cni.Conf {
		c, err := cni.Parse([]byte((&bed{dir: "/x"}).hostLocal()))
		if err != nil {
			t.Fatal(err)
		}
		c.Path = plugins
		return c
	}
	a := &Agent{log: slog.New(slog.DiscardHandler), ctx: t.Context()}
	var err error
	if a.store, err = openStore(t.TempDir(), 1, false); err != nil {
		t.Fatal(err)
	}
	defer a.store.close()
	a.records = newRecords(a.store)
	a.networks = newNetworks(a)
	c := read()
	for _, id := range []string{"one", "two"} {
		d := &addition{Agent: a, conf: c, n: a.networks.get(c), r: newRecord(cni.Attachment{ContainerID: id, IfName: "eth0"}, c)}
		if err := d.lease(); err != nil {
			t.Fatal(err)
		}
		result := resultOf(d.conf, d.r, devices.Made{})
		if len(result.Routes) != 2 || !result.Routes[1].GW.Equal(net.IPv4(10, 88, 0, 9)) || len(result.DNS.Nameservers) != 1 {
			t.Errorf("container %s: %+v", id, result)
		}
		if want := read(); !reflect.DeepEqual(c, want) {
			t.Errorf("after container %s the configuration is %+v, want %+v", id, c, want)
		}
	}
}

// The agent dies with an address leased by host-local: the next agent releases it, without
// a DEL.
func TestKilledWithDelegate(t *testing.T) {
	for _, at := range []string{"add-delegated", "add-leased", "add-made", "del-device", "del-lease"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			b.start(faultEnv + "=" + at)
			pod := nstest.New(t)
			conf := b.hostLocal(`"agentDown": "error"`)
			a := b.cni("ADD", "c", netns.Path(pod), conf)
			if dies := strings.HasPrefix(at, "add"); dies != (a.code != 0) {
				t.Errorf("ADD: %d %s", a.code, a.out)
			}
			if strings.HasPrefix(at, "del") {
				_ = b.cni("DEL", "c", netns.Path(pod), conf)
			}
			b.kill()
			b.start()
			eventually(t, "address, record and attachment are released", func() bool {
				return len(b.held()) == 0 && len(b.records()) == 0 && len(b.state().Attachments) == 0
			})
			b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			b.stop()
			b.wantNothing()
		})
	}
}

// A DEL releases the address of a rebuilt record at host-local.
func TestCorruptRecordOfDelegate(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.hostLocal()))
	b.kill()
	if err := os.WriteFile(b.records()[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.want(b.cni("DEL", "c", netns.Path(pod), b.hostLocal()))
	if held := b.held(); len(held) > 0 {
		t.Errorf("left: %v", held)
	}
	b.stop()
	b.wantNothing()
}

// A plugin that fails to release an address does not keep the agent from serving others.
func TestDelegateGone(t *testing.T) {
	b := newBed(t)
	b.start()
	one, two := nstest.New(t), nstest.New(t)
	plugins := t.TempDir()
	path := "CNI_PATH=" + plugins
	if err := os.Symlink("/usr/lib/cni/host-local", filepath.Join(plugins, "host-local")); err != nil {
		t.Fatal(err)
	}
	b.want(b.cni("ADD", "one", netns.Path(one), b.hostLocal(), path))
	b.kill()
	if err := os.Remove(filepath.Join(plugins, "host-local")); err != nil {
		t.Fatal(err)
	}
	if err := netns.Delete(one); err != nil {
		t.Fatal(err)
	}
	b.start(reconcileEnv + "=10ms")
	other := strings.Replace(b.conf(), `"net"`, `"other"`, 1)
	b.want(b.cni("ADD", "two", netns.Path(two), other))
	b.ping(two)
	if err := os.Symlink("/usr/lib/cni/host-local", filepath.Join(plugins, "host-local")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address is given back", func() bool { return len(b.held()) == 0 })
}

// A plugin that hangs in DEL delays neither the agent's start and end nor other networks,
// and is killed with its child processes.
func TestDelegateHangs(t *testing.T) {
	b := newBed(t)
	b.start()
	pod, other := nstest.New(t), nstest.New(t)
	plugins := t.TempDir()
	path := "CNI_PATH=" + plugins
	child := filepath.Join(plugins, "child")
	script := "#!/bin/sh\n[ $CNI_COMMAND = DEL ] || exec /usr/lib/cni/host-local\nsleep 1000 & echo $! >" + child + "\nwait\n"
	if err := os.WriteFile(filepath.Join(plugins, "host-local"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b.want(b.cni("ADD", "one", netns.Path(pod), b.hostLocal(), path))
	b.kill()
	if err := netns.Delete(pod); err != nil {
		t.Fatal(err)
	}
	b.start() // fails if it does not answer
	var pid int
	eventually(t, "the plugin hangs", func() bool {
		text, err := os.ReadFile(child)
		if err == nil {
			_, err = fmt.Sscan(string(text), &pid)
		}
		return err == nil
	})
	b.want(b.cni("ADD", "two", netns.Path(other), strings.Replace(b.conf(), `"net"`, `"other"`, 1)))
	b.ping(other)
	begin := time.Now()
	b.stop()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the agent took %v to end", took)
	}
	eventually(t, "the plugin's child is killed", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return errors.Is(err, os.ErrNotExist) || strings.Contains(string(status), "State:\tZ")
	})
}

// A plugin that hangs in ADD or CHECK delays neither other networks nor the agent's end.
func TestDelegateHangsInCall(t *testing.T) {
	for _, verb := range []string{"ADD", "CHECK"} {
		t.Run(verb, func(t *testing.T) {
			b := newBed(t)
			b.start()
			pod, other := nstest.New(t), nstest.New(t)
			plugins := t.TempDir()
			path := "CNI_PATH=" + plugins
			hangs := filepath.Join(plugins, "hangs")
			script := "#!/bin/sh\n[ $CNI_COMMAND = " + verb + " -a ! -e " + hangs + " ] || exec /usr/lib/cni/host-local\necho > " + hangs + "\nexec sleep 1000\n"
			if err := os.WriteFile(filepath.Join(plugins, "host-local"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			conf := b.hostLocal(`"agentDown": "error"`)
			if verb != "ADD" {
				b.want(b.cni("ADD", "one", netns.Path(pod), conf, path))
			}
			ended := make(chan answer)
			go func() { ended <- b.cni(verb, "one", netns.Path(pod), conf, path) }()
			eventually(t, "the plugin hangs", func() bool { _, err := os.Stat(hangs); return err == nil })
			b.want(b.cni("ADD", "two", netns.Path(other), strings.Replace(b.conf(), `"net"`, `"other"`, 1)))
			b.ping(other)
			begin := time.Now()
			b.stop()
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("the agent took %v to end", took)
			}
			// Without an agent, scon-cni makes a CHECK itself.
			if a := <-ended; (a.code == 0) != (verb == "CHECK") {
				t.Errorf("%s: %d %s", verb, a.code, a.out)
			}
		})
	}
}
