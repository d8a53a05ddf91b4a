package startup

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/nstest"
)

// wantWhole fails unless the agent starts again, a container gets and releases a network,
// and nothing is left afterwards.
func (b *bed) wantWhole(conf string) {
	b.t.Helper()
	pod := nstest.New(b.t)
	b.want(b.cni("ADD", "after", netns.Path(pod), conf))
	b.ping(pod)
	b.want(b.cni("DEL", "after", netns.Path(pod), conf))
	for _, a := range b.state().Attachments {
		b.t.Errorf("left: %+v", a)
	}
	b.stop()
	b.wantNothing()
}

// The agent dies at each step of ADD and of DEL; scon-cni then works without the agent, and
// first removes the unfinished state.
func TestKilledInPlace(t *testing.T) {
	for _, at := range []string{"add-leased", "add-made", "add-kept", "del-begin", "del-device", "del-lease", "del-record"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			b.start(faultEnv + "=" + at)
			pod := nstest.New(t)
			a := b.cni("ADD", "c", netns.Path(pod), b.conf(`"agentDown": "error"`))
			if dies := strings.HasPrefix(at, "add"); dies != (a.code != 0) {
				t.Errorf("ADD: %d %s", a.code, a.out)
			}
			b.want(b.cni("DEL", "c", netns.Path(pod), b.conf(`"agentDown": "error"`)))
			b.kill()
			b.start()
			b.wantWhole(b.conf())
		})
	}
}

// dieFilling starts an agent that dies at a step of filling a network's pool.
func (b *bed) dieFilling(conf, at string) {
	b.t.Helper()
	file := filepath.Join(b.dir, "net.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.spawn(faultEnv+"="+at, configEnv+"=  networks: ["+file+"]\n  pool: {warm_target: 2, minimum: 0}")
	if err := b.agent.Wait(); err == nil {
		b.t.Error("the agent ended in order")
	}
	b.agent = nil
}

// The same for a pool, whose namespaces have no container.
func TestKilledWithPool(t *testing.T) {
	swaps(t)
	for _, at := range []string{"pool-begin", "pool-made", "add-taken", "add-replaced", "add-kept", "del-begin", "del-device", "del-lease", "del-record", "del-name"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			pod := nstest.New(t)
			conf := b.conf(`"agentDown": "error"`)
			if strings.HasPrefix(at, "pool") {
				b.dieFilling(b.conf(), at)
			} else {
				b.withPool(2, faultEnv+"="+at)
				a := b.cni("ADD", "c", netns.Path(pod), conf)
				if dies := strings.HasPrefix(at, "add"); dies != (a.code != 0) {
					t.Errorf("ADD: %d %s", a.code, a.out)
				}
				b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			}
			b.kill()
			b.withPool(2)
			b.wantWhole(b.conf())
		})
	}
}

// scon-cni dies while it works without an agent.
func TestKilledAlone(t *testing.T) {
	for _, at := range []string{"add-leased", "add-made", "add-kept"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			pod := nstest.New(t)
			cmd := exec.Command(filepath.Join(bin, "scon-cni"))
			cmd.Env = append(os.Environ(), faultEnv+"="+at, "CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_PATH="+bin, "CNI_NETNS="+netns.Path(pod))
			cmd.Stdin = strings.NewReader(b.conf())
			nstest.Do(t, b.host, func() {
				if err := cmd.Run(); err == nil {
					t.Error("it ended in order")
				}
			})
			b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
			b.start()
			b.wantWhole(b.conf())
		})
	}
}

// Without an agent ADD works in place or is refused; DEL succeeds.
func TestAgentDown(t *testing.T) {
	b := newBed(t)
	pod, two := nstest.New(t), nstest.New(t)
	strict := b.conf(`"agentDown": "error"`)
	if a := b.cni("ADD", "c", netns.Path(pod), strict); a.code != 1 || !strings.Contains(a.out, `"code":50`) || !strings.Contains(a.out, "scon up") {
		t.Errorf("ADD: %d %s", a.code, a.out)
	}
	if a := b.cni("STATUS", "", "", strict); !strings.Contains(a.out, `"code":50`) {
		t.Errorf("STATUS: %s", a.out)
	}
	b.want(b.cni("STATUS", "", "", b.conf()))
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.ping(pod)
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
	b.want(b.cni("VERSION", "", "", ""))

	// A new agent takes over the existing attachments.
	b.start()
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
	b.want(b.cni("ADD", "d", netns.Path(two), b.conf()))
	b.ping(two)
	b.kill()
	b.ping(pod)
	b.want(b.cni("DEL", "c", netns.Path(pod), strict)) // by word that is left
	b.want(b.cni("DEL", "d", netns.Path(two), b.conf()))
	b.want(b.cni("DEL", "d", netns.Path(two), b.conf()))
	b.want(b.cni("DEL", "never", "", strict))
	b.start()
	b.wantWhole(b.conf())
}

// A recorded DEL does not apply to a later container with the same name.
func TestDeletedAndAddedAgain(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	deaf := strings.Replace(b.conf(`"agentDown": "error"`), b.socket(), b.dir+"/deaf.sock", 1)
	b.want(b.cni("DEL", "c", netns.Path(pod), deaf))
	if words, _ := filepath.Glob(filepath.Join(b.dir, "startup", "*", "deleted", "*")); len(words) != 1 {
		t.Fatalf("words left: %v", words)
	}
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.kill()
	b.start()
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
	b.ping(pod)
}

// A stopped agent is not treated as dead.
func TestAgentStopped(t *testing.T) {
	b := newBed(t)
	b.start(reconcileEnv + "=10ms")
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	if err := os.Remove(b.socket()); err != nil { // as if it did not answer
		t.Fatal(err)
	}
	const patience = patienceEnv + "=10ms"
	if a := b.cni("ADD", "d", netns.Path(nstest.New(t)), b.conf(), patience); a.code != 1 || !strings.Contains(a.out, "runs but does not answer") {
		t.Errorf("ADD: %s", a.out)
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf(), patience))
	eventually(t, "it hears of the DEL", func() bool { return len(b.records()) == 0 })
	b.kill()
	b.wantNothing()
}

// The socket is outside the state directory, or the configuration names a socket without an
// agent: a process without the agent removes no other container's network.
func TestSocketElsewhere(t *testing.T) {
	t.Setenv(socketEnv, "run/startup.sock")
	b := newBed(t)
	if err := os.Mkdir(filepath.Dir(b.socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	b.start()
	pod, two := nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.want(b.cni("ADD", "d", netns.Path(two), b.conf()))
	b.kill()
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
	if n := len(b.records()); n != 1 {
		t.Errorf("%d records are left, want 1", n)
	}
	b.ping(two)
	wrong := strings.ReplaceAll(b.conf(), b.socket(), b.dir+"/nobody/startup.sock")
	b.want(b.cni("DEL", "x", netns.Path(two), wrong))
	b.ping(two)
	b.start()
	b.want(b.cni("CHECK", "d", netns.Path(two), b.conf()))
	b.want(b.cni("DEL", "d", netns.Path(two), b.conf()))
	b.wantWhole(b.conf())
	if left, _ := os.ReadDir(filepath.Dir(b.socket())); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Containers end without a DEL.
func TestVanished(t *testing.T) {
	b := newBed(t)
	b.withPool(1)
	pod := nstest.New(t)
	b.want(b.cni("ADD", "pooled", netns.Path(pod), b.conf()))
	if err := netns.Delete(pod); err != nil {
		t.Fatal(err)
	}
	b.kill()
	b.withPool(1)
	if s := b.state(); len(s.Attachments) != 0 {
		t.Errorf("left: %+v", s.Attachments)
	}
	pod = nstest.New(t)
	b.want(b.cni("ADD", "inplace", netns.Path(pod), b.conf(`"handOver": "none"`)))
	if err := netns.Delete(pod); err != nil {
		t.Fatal(err)
	}
	b.want(b.cni("DEL", "inplace", netns.Path(pod), b.conf()))
	b.wantWhole(b.conf())
}

// A corrupt record is moved aside and rebuilt from the kernel's state.
func TestCorruptRecord(t *testing.T) {
	for name, more := range map[string]string{"in place": `"handOver": "none"`, "pooled": `"handOver": "swap"`} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.withPool(1)
			pod := nstest.New(t)
			b.want(b.cni("ADD", "c", netns.Path(pod), b.conf(more)))
			before := b.state().Attachments[0]
			b.kill()
			for _, file := range b.records() {
				if err := os.WriteFile(file, []byte(`{"network": {`), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b.withPool(1)
			after := b.state().Attachments
			if len(after) != 1 || after[0].Addresses[0] != before.Addresses[0] || after[0].Host != before.Host {
				t.Errorf("%+v, was %+v", after, before)
			}
			b.ping(pod)
			if aside, _ := filepath.Glob(filepath.Join(b.dir, "startup", "*", "corrupt", "*")); len(aside) != 1 {
				t.Errorf("kept aside: %v", aside)
			}
			// Its address is not leased again.
			two := nstest.New(t)
			if out := b.want(b.cni("ADD", "two", netns.Path(two), b.conf())); strings.Contains(out, `"address":"`+before.Addresses[0]) {
				t.Errorf("leased twice: %s", out)
			}
			b.want(b.cni("DEL", "two", netns.Path(two), b.conf()))
			b.want(b.cni("DEL", "c", netns.Path(pod), b.conf(more)))
			eventually(t, "no address is taken but those of the pool", func() bool {
				n := b.state().Networks[0]
				return n.Addresses == n.Pool.Ready
			})
			b.wantWhole(b.conf())
		})
	}
}

// A container that is known only by its process, without a device on the host, is gone when
// its processes have ended.
func TestProcessGone(t *testing.T) {
	b := newBed(t)
	b.port()
	b.start(reconcileEnv + "=10ms")
	process := exec.Command("sleep", "infinity")
	nstest.Do(t, nstest.New(t), func() {
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	path := fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid)
	b.want(b.cni("ADD", "c", path, b.kindConf("macvlan")))
	b.want(b.cni("CHECK", "c", path, b.kindConf("macvlan")))
	_ = process.Process.Kill()
	_ = process.Wait()
	eventually(t, "its address is free", func() bool { return b.state().Networks[0].Addresses == 0 })
}

// After the container of such a record ends, its address is free again.
func TestCorruptRecordVanished(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.kill()
	if err := os.WriteFile(b.records()[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(reconcileEnv + "=10ms")
	b.want(b.cni("STATUS", "", "", b.conf()))
	if n := b.state().Networks[0].Addresses; n != 1 {
		t.Errorf("%d addresses are taken, want 1", n)
	}
	if err := netns.Delete(pod); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its address is free", func() bool { return b.state().Networks[0].Addresses == 0 })
}

// A device without an end on the host is found by its alias: without a record it is
// removed; a corrupt record is rebuilt.
func TestMarked(t *testing.T) {
	b := newBed(t)
	b.port()
	conf := b.kindConf("macvlan")
	for _, at := range []string{"add-made", "add-kept", "del-begin", "del-device", "del-lease", "del-record"} {
		t.Run(at, func(t *testing.T) {
			pod := nstest.New(t)
			b.start(faultEnv + "=" + at)
			a := b.cni("ADD", "c", netns.Path(pod), b.kindConf("macvlan", `"agentDown": "error"`))
			if dies := strings.HasPrefix(at, "add"); dies != (a.code != 0) {
				t.Errorf("ADD: %d %s", a.code, a.out)
			}
			if strings.HasPrefix(at, "del") {
				b.want(b.cni("DEL", "c", netns.Path(pod), b.kindConf("macvlan", `"agentDown": "error"`)))
			}
			b.kill()
			b.start()
			if at == "add-kept" {
				b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			}
			if out := nstest.Run(t, pod, "ip -br link"); strings.Contains(out, "eth0") {
				t.Errorf("the device is left: %s", out)
			}
			b.stop()
			b.wantNothing()
		})
	}
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	b.kill()
	if err := os.WriteFile(b.records()[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.ping(pod)
	if at := b.state().Attachments; len(at) != 1 || len(at[0].Addresses) != 1 || at[0].Addresses[0] != "10.88.0.2/24" {
		t.Errorf("%+v", at)
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), conf))
	if out := nstest.Run(t, pod, "ip -br link"); strings.Contains(out, "eth0") {
		t.Errorf("the device is left: %s", out)
	}
}

// What is done in a namespace, where anyone may be root, stops neither an agent's start nor a
// DEL: marks of the agent's there, on a device that cannot be removed and in a namespace that
// ends meanwhile, and lo under the device's name.
func TestForgedMarks(t *testing.T) {
	b := newBed(t)
	b.port()
	conf := b.kindConf("macvlan")
	b.start()
	pod, other := nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	b.kill()
	marked := func(key string, enter ...string) *exec.Cmd {
		mark := fmt.Sprintf("ip link set lo alias 'scon %d %s'; echo; exec sleep 1000", inode(t, b.host), key)
		return exec.Command(enter[0], append(enter[1:], "sh", "-c", mark)...)
	}
	var ends *exec.Cmd // the latter, in a namespace without a name
	for _, ends = range []*exec.Cmd{marked("0123456789ab", "nsenter", "--net="+netns.Path(other)), marked("ba9876543210", "unshare", "--net")} {
		out, err := ends.StdoutPipe()
		if err == nil {
			err = ends.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer ends.Process.Kill()
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	reached, goOn := b.pause("recover-marked")
	b.spawn()
	reached()
	_ = ends.Process.Kill()
	_ = ends.Wait()
	goOn()
	eventually(t, "the agent is up", func() bool {
		conn, err := net.Dial("unix", b.socket())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	b.ping(pod)
	nstest.Run(t, pod, "ip link set eth0 down\nip link set eth0 name eth1\nip link set lo down\nip link set lo name eth0")
	b.want(b.cni("DEL", "c", netns.Path(pod), conf))
	b.stop()
	b.wantNothing()
}

// A second agent in the same namespace is refused and disturbs nothing.
func TestTwoAgents(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	var stderr bytes.Buffer
	second := exec.Command(filepath.Join(bin, "scon"), "agent", b.dir)
	second.Stderr = &stderr
	nstest.Do(t, b.host, func() {
		if err := second.Run(); err == nil || !strings.Contains(stderr.String(), "another SCON is running") {
			t.Errorf("the second one: %v, %s", err, &stderr)
		}
	})
	b.ping(pod)
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))

	// In another namespace it is another host, with the same directory of names.
	other := newBed(t)
	other.withPool(1)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.kill()
	b.start()
	guest := nstest.New(t)
	other.want(other.cni("ADD", "c", netns.Path(guest), other.conf()))
	other.ping(guest)
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
}

// Files of another boot are ignored.
func TestReboot(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	b.kill()
	nstest.Run(t, b.host, "ip link del br0\nip link del "+b.devices()[0])
	if err := os.WriteFile(filepath.Join(b.dir, "startup", "boot"), []byte("00000000-0000-4000-8000-000000000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	if s := b.state(); len(s.Attachments) != 0 {
		t.Errorf("left: %+v", s.Attachments)
	}
	b.wantWhole(b.conf())
}

// Invalid files about the boot or the agent disconnect no container, and DEL succeeds.
func TestGarbledState(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	for _, content := range []string{"", "garbled"} {
		b.kill()
		for _, file := range []string{"boot", "home"} {
			if err := os.WriteFile(filepath.Join(b.dir, "startup", file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.start()
		b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
		b.ping(pod)
	}
	b.kill()
	if err := os.WriteFile(filepath.Join(b.dir, "startup", "home"), []byte("garbled"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf()))
	b.start()
	b.wantWhole(b.conf())
}

// A removed bridge is made again.
func TestBridgeGone(t *testing.T) {
	b := newBed(t)
	b.start()
	one, two := nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(one), b.conf()))
	b.want(b.cni("DEL", "c", netns.Path(one), b.conf()))
	nstest.Run(t, b.host, "ip link del br0")
	b.want(b.cni("ADD", "d", netns.Path(two), b.conf()))
	b.ping(two)
	b.want(b.cni("DEL", "d", netns.Path(two), b.conf()))
	// Or another device has its name, without a gateway address.
	nstest.Run(t, b.host, "ip link del br0\nip link add br0 type bridge\nip link set br0 up")
	b.want(b.cni("ADD", "e", netns.Path(one), b.conf()))
	b.ping(one)
	b.want(b.cni("DEL", "e", netns.Path(one), b.conf()))
	nstest.Run(t, b.host, "ip link del br0")
	b.stop()

	// Pooled namespaces are without a bridge then.
	b.withPool(2)
	for i := range 3 {
		nstest.Run(t, b.host, "ip link del br0")
		pod := nstest.New(t)
		b.want(b.cni("ADD", fmt.Sprint(i), netns.Path(pod), b.conf()))
		b.ping(pod)
	}
}

// The host state of an earlier configuration is removed with the rest.
func TestRenamedBridge(t *testing.T) {
	b := newBed(t)
	b.start()
	for _, bridge := range []string{"br0", "br1", "br2"} {
		pod := nstest.New(t)
		conf := strings.Replace(b.conf(`"ipMasq": true`, `"tenant": "a"`), "br0", bridge, 1)
		b.want(b.cni("ADD", bridge, netns.Path(pod), conf))
		b.want(b.cni("DEL", bridge, netns.Path(pod), conf))
	}
	b.stop()
	b.wantNothing()
	if out := nstest.Run(t, b.host, "ip -br link") + nstest.Run(t, b.host, "nft list ruleset"); strings.Contains(out, "br") || strings.Contains(out, "scon") {
		t.Errorf("left: %s", out)
	}
}

// After a thousand containers the number of devices, namespaces, records, addresses and
// open files of the agent has not grown.
func TestThousandCycles(t *testing.T) {
	b := newBed(t)
	b.withPool(4)
	conf := b.conf()
	count := func() (files int) {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.agent.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	const ahead = 50 // until all is in use that stays in use
	before := 0
	pod := nstest.New(t)
	for i := range 1000 + ahead {
		if i == ahead {
			before = count()
		}
		id := fmt.Sprint(i)
		b.want(b.cni("ADD", id, netns.Path(pod), conf))
		b.want(b.cni("DEL", id, netns.Path(pod), conf))
		// A displaced namespace is reused only if it is empty; the runtime makes a new one.
		if err := netns.Delete(pod); err != nil {
			t.Fatal(err)
		}
		if err := netns.Create(pod); err != nil && !errors.Is(err, netns.ErrExist) {
			t.Fatal(err)
		}
	}
	if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: 4}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no more files are open than before", func() bool { return count() <= before+8 })
	s := b.state()
	if len(s.Attachments) != 0 || len(b.records()) != 0 {
		t.Errorf("left: %+v %v", s.Attachments, b.records())
	}
	eventually(t, "addresses are those of the pool", func() bool {
		n := b.state().Networks[0]
		return n.Addresses == n.Pool.Ready && len(b.devices()) == n.Pool.Ready
	})
	b.stop()
	b.wantNothing()
}
