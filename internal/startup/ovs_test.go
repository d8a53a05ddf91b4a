package startup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// vswitch is an Open vSwitch of a test: its database in a directory, its
// user-space datapath in the host's namespace, with a bridge o0.
type vswitch struct {
	b        *bed
	dir      string
	db, main *exec.Cmd
}

// vswitch starts an Open vSwitch that ends with the test. The agent finds it by OVS_RUNDIR.
func (b *bed) vswitch() *vswitch {
	b.t.Helper()
	if _, err := exec.LookPath("ovs-vswitchd"); err != nil {
		b.t.Fatal("no Open vSwitch: scripts/install-deps.sh startup installs it")
	}
	dir, err := os.MkdirTemp("", "scon-o")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { os.RemoveAll(dir) })
	b.t.Setenv("OVS_RUNDIR", dir)
	v := &vswitch{b: b, dir: dir}
	nstest.Run(b.t, b.host, "ovsdb-tool create "+v.file("conf.db")+" /usr/share/openvswitch/vswitch.ovsschema")
	v.db = v.run("ovsdb-server", v.file("conf.db"), "--remote=punix:"+v.file("db.sock"))
	eventually(b.t, "the database answers", func() bool { return v.try("--no-wait", "init") == nil })
	v.main = v.run("ovs-vswitchd", "unix:"+v.file("db.sock"))
	v.ctl("add-br", "o0", "--", "set", "Bridge", "o0", "datapath_type=netdev")
	return v
}

func (v *vswitch) file(name string) string { return filepath.Join(v.dir, name) }

// run starts one of its processes, which the test ends.
func (v *vswitch) run(program string, args ...string) *exec.Cmd {
	v.b.t.Helper()
	cmd := exec.Command(program, append(args, "--unixctl="+v.file(program+".ctl"), "--log-file="+v.file(program+".log"), "-vconsole:off")...)
	nstest.Do(v.b.t, v.b.host, func() {
		if err := cmd.Start(); err != nil {
			v.b.t.Fatal(err)
		}
	})
	v.b.t.Cleanup(func() { end(cmd) })
	return cmd
}

// end kills a process; a second call does nothing.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func (v *vswitch) try(args ...string) error {
	return exec.Command("ovs-vsctl", append([]string{"--timeout=10"}, args...)...).Run()
}

// ctl changes or reads the database.
func (v *vswitch) ctl(args ...string) string {
	v.b.t.Helper()
	out, err := exec.Command("ovs-vsctl", append([]string{"--timeout=10"}, args...)...).CombinedOutput()
	if err != nil {
		v.b.t.Fatalf("ovs-vsctl %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Each container has its own port of the vSwitch; ports of different tenants are in different
// VLANs.
func TestOVS(t *testing.T) {
	b := newBed(t)
	v := b.vswitch()
	b.start(configEnv + "=  pool: {warm_target: 1, minimum: 0}")
	one, two := nstest.New(t), nstest.New(t)
	conf := b.tenantConf("", 0, `"kind": "ovs", "bridge": "o0", "isGateway": true`)
	b.want(b.cni("ADD", "one", netns.Path(one), conf))
	b.want(b.cni("ADD", "two", netns.Path(two), conf))
	b.ping(one)
	b.want(b.cni("CHECK", "one", netns.Path(one), conf))
	addr := b.address("two")
	wantReach(t, one, map[string]bool{addr: true})
	listen(t, two, 80)
	if !connects(t, one, addr, 80) {
		t.Error("TCP does not connect: its checksums are not complete")
	}
	host := b.state().Attachments[0].Host
	v.ctl("del-port", "o0", host)
	if a := b.cni("CHECK", "one", netns.Path(one), conf); a.code != 1 || !strings.Contains(a.out, host+" is not a port") {
		t.Errorf("CHECK: %s", a.out)
	}
	b.want(b.cni("DEL", "one", netns.Path(one), conf))
	b.want(b.cni("DEL", "two", netns.Path(two), conf))

	vlan := func(tenant string, n int, tag string) string {
		return b.tenantConf(tenant, n, `"kind": "ovs", "bridge": "o0", "handOver": "none", "vlan": `+tag)
	}
	if a := b.cni("ADD", "no", netns.Path(nstest.New(t)), vlan("b", 5, "0")); a.code != 1 || !strings.Contains(a.out, "or a vlan for each tenant") {
		t.Errorf("ADD: %s", a.out)
	}
	b.stop()
	if left := v.ctl("list-ports", "o0"); left != "" {
		t.Errorf("ports are left: %s", left)
	}
	b.wantNothing()
	b.start()
	pods := []string{nstest.New(t), nstest.New(t), nstest.New(t)}
	confs := []string{vlan("a", 1, "10"), vlan("a", 2, "10"), vlan("b", 3, "20")}
	for i, pod := range pods {
		// In one subnet, so they are neighbours if they are in one VLAN.
		confs[i] = strings.Replace(confs[i], `"10.88.`, `"10.88.0.0/16", "rangeStart": "10.88.`, 1)
		confs[i] = strings.Replace(confs[i], `.0/24"`, `.9", "gateway": "10.88.9.9"`, 1)
		b.want(b.cni("ADD", "v", netns.Path(pod), confs[i]))
	}
	wantReach(t, pods[0], map[string]bool{"10.88.2.9": true, "10.88.3.9": false})
	for i, pod := range pods {
		b.want(b.cni("DEL", "v", netns.Path(pod), confs[i]))
	}
	b.stop()
	if left := v.ctl("list-ports", "o0"); left != "" {
		t.Errorf("ports are left: %s", left)
	}
}

// All tenants share one vPort of the vSwitch (Understanding Network Startup for Secure
// Containers, figure 4d).
func TestOVSRouting(t *testing.T) {
	b := newBed(t)
	v := b.vswitch()
	v.ctl("add-port", "o0", "m0", "--", "set", "Interface", "m0", "type=internal")
	nstest.Run(t, b.host, "ip link set o0 up\nip addr add 10.88.0.1/24 dev o0")
	b.start()
	one, two := nstest.New(t), nstest.New(t)
	conf := b.kindConf("tc-routing")
	b.want(b.cni("ADD", "one", netns.Path(one), conf))
	b.want(b.cni("ADD", "two", netns.Path(two), conf))
	b.ping(one)
	wantReach(t, one, map[string]bool{"10.88.0.3": true})
	if ports := v.ctl("list-ports", "o0"); ports != "m0" {
		t.Errorf("ports: %s", ports)
	}
}

// ovs-vswitchd is restarted, as by an update of Open vSwitch: containers' ports return, and
// the agent can add more.
func TestOVSRestarted(t *testing.T) {
	b := newBed(t)
	v := b.vswitch()
	b.start()
	one, two, three := nstest.New(t), nstest.New(t), nstest.New(t)
	conf := b.kindConf("ovs", `"bridge": "o0", "isGateway": true`)
	b.want(b.cni("ADD", "one", netns.Path(one), conf))
	b.want(b.cni("ADD", "two", netns.Path(two), conf))
	b.ping(one)
	end(v.main)
	b.want(b.cni("DEL", "two", netns.Path(two), conf))
	v.main = v.run("ovs-vswitchd", "unix:"+v.file("db.sock"))
	eventually(t, "the gateway answers again", func() bool {
		return reaches(one, "10.88.0.1", 1)
	})
	b.want(b.cni("CHECK", "one", netns.Path(one), conf))
	b.want(b.cni("STATUS", "", "", conf))
	b.want(b.cni("ADD", "three", netns.Path(three), conf))
	wantReach(t, one, map[string]bool{b.address("three"): true})
	b.want(b.cni("DEL", "one", netns.Path(one), conf))
	b.want(b.cni("DEL", "three", netns.Path(three), conf))
	b.stop()
	if left := v.ctl("list-ports", "o0"); left != "" {
		t.Errorf("ports are left: %s", left)
	}
	b.wantNothing()
}

// Ports left by a dead agent are removed from the database.
func TestOVSKilled(t *testing.T) {
	for _, at := range []string{"add-made", "del-device", "pool-made"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			v := b.vswitch()
			conf := b.kindConf("ovs", `"bridge": "o0"`, `"agentDown": "error"`)
			if at == "pool-made" {
				b.dieFilling(conf, at)
			} else {
				b.start(faultEnv + "=" + at)
				path := netns.Path(nstest.New(t))
				_ = b.cni("ADD", "c", path, conf)
				b.want(b.cni("DEL", "c", path, conf))
			}
			b.kill()
			b.start()
			if left := v.ctl("list-ports", "o0"); left != "" {
				t.Errorf("ports are left: %s", left)
			}
			b.stop()
			b.wantNothing()
		})
	}
}

// A missing component of Open vSwitch is named in the error; DEL succeeds.
func TestOVSMissing(t *testing.T) {
	b := newBed(t)
	v := b.vswitch()
	b.start()
	conf := b.kindConf("ovs", `"bridge": "o0"`)
	refused := func(verb, conf string, want ...string) {
		t.Helper()
		a := b.cni(verb, "d", netns.Path(nstest.New(t)), conf)
		for _, want := range want {
			if a.code != 1 || !strings.Contains(a.out, want) {
				t.Errorf("%s: %d %s, want %s", verb, a.code, a.out, want)
			}
		}
	}
	path := netns.Path(nstest.New(t))
	b.want(b.cni("STATUS", "", "", conf))
	b.want(b.cni("ADD", "c", path, conf))
	refused("ADD", strings.Replace(strings.Replace(conf, "o0", "o1", 1), `"net"`, `"other"`, 1), "bridge o1 is not in", "ovs-vsctl add-br o1")
	end(v.main)
	refused("ADD", strings.Replace(conf, `"net"`, `"third"`, 1), "is ovs-vswitchd running?")
	end(v.db)
	refused("ADD", strings.Replace(conf, `"net"`, `"fourth"`, 1), "are ovsdb-server and ovs-vswitchd running?")
	refused("STATUS", conf, `"code":51`)
	b.want(b.cni("DEL", "c", path, conf))
	refused("STATUS", conf, `"code":50`)
	b.stop()
	b.wantNothing()
	b.start("PATH=/nowhere")
	refused("ADD", conf, "program ovs-vsctl of Open vSwitch is not installed", "openvswitch-switch")
}
