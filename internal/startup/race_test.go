package startup

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Concurrent operations, ordered by pauses at steps.

// later is the answer of a scon-cni that still runs.
func (b *bed) later(verb, id, netnsPath, conf string, env ...string) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- b.cni(verb, id, netnsPath, conf, env...) }()
	return answers
}

// An attachment made while the agent searches for dead containers is not released.
func TestAddWhileReconciling(t *testing.T) {
	b := newBed(t)
	b.start(reconcileEnv + "=10ms")
	pod := nstest.New(t)
	reached, goOn := b.pause("reconcile-listed")
	reached()
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	goOn()
	reached, goOn = b.pause("reconcile-listed")
	reached()
	goOn()
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
	b.ping(pod)
}

// An address that is being leased is not leased again, also not under another configuration
// of the network.
func TestChangedConfiguration(t *testing.T) {
	b := newBed(t)
	b.start()
	one, two := nstest.New(t), nstest.New(t)
	reached, goOn := b.pause("add-leased")
	first := b.later("ADD", "one", netns.Path(one), b.conf())
	reached()
	b.want(b.cni("ADD", "two", netns.Path(two), b.conf(`"mtu": 1400`)))
	goOn()
	b.want(<-first)
	if a, c := b.address("one"), b.address("two"); a == c {
		t.Errorf("both have %s", a)
	}
}

// While a container takes an address from the pool, the refill does not take it.
func TestRefillTakesNoReturnedAddress(t *testing.T) {
	b := newBed(t)
	conf := strings.Replace(b.conf(`"handOver": "none"`), `"subnet": "10.88.0.0/24"`, `"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.3"`, 1)
	file := filepath.Join(b.dir, "net.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(configEnv + "=  networks: [" + file + "]\n  pool: {warm_target: 2, minimum: 0}")
	eventually(t, "the pool has all addresses", func() bool { return b.state().Networks[0].Pool.Ready == 2 })
	reached, goOn := b.pause("lease-shed")
	added := b.later("ADD", "c", netns.Path(nstest.New(t)), conf)
	reached()
	eventually(t, "the refill has been refused", func() bool {
		p := b.state().Networks[0].Pool
		if p.Ready > 1 {
			t.Fatal("the refill has taken the address")
		}
		return strings.Contains(p.Failure, "a container needs its addresses")
	})
	goOn()
	b.want(<-added)
}

// A container whose runtime stopped waiting keeps nothing: its DEL may have come before.
func TestAskedInVain(t *testing.T) {
	for name, hand := range map[string]string{"in place": "none", "pooled": "swap"} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.withPool(1)
			pod := nstest.New(t)
			reached, goOn := b.pause("add-kept")
			conn, err := net.Dial("unix", b.socket())
			if err != nil {
				t.Fatal(err)
			}
			conf := b.conf(`"handOver": "` + hand + `"`)
			fmt.Fprintf(conn, "POST /v1/cni HTTP/1.0\r\nCni-Command: ADD\r\nCni-Containerid: c\r\nCni-Ifname: eth0\r\nCni-Path: %s\r\nCni-Netns: %s\r\nContent-Length: %d\r\n\r\n%s",
				bin, netns.Path(pod), len(conf), conf)
			reached()
			conn.Close()
			goOn()
			eventually(t, "nothing is left", func() bool { return len(b.state().Attachments) == 0 && len(b.records()) == 0 })
		})
	}
}

// An address is free exactly if it has no record: a DEL that fails, since the directory is
// read-only, changes nothing.
func TestReadOnlyRecords(t *testing.T) {
	b := newBed(t)
	b.start()
	one, two, three := nstest.New(t), nstest.New(t), nstest.New(t)
	conf := strings.Replace(b.conf(), `"subnet": "10.88.0.0/24"`, `"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.3"`, 1)
	b.want(b.cni("ADD", "one", netns.Path(one), conf))
	records, _ := filepath.Glob(filepath.Join(b.dir, "startup", "*", "attachments"))
	b.remount(records[0], "ro")
	if a := b.cni("ADD", "two", netns.Path(two), conf); a.code != 1 || !strings.Contains(a.out, "read-only file system") {
		t.Errorf("ADD: %s", a.out)
	}
	if a := b.cni("DEL", "one", netns.Path(one), conf); a.code != 1 || !strings.Contains(a.out, "read-only file system") {
		t.Errorf("DEL: %s", a.out)
	}
	b.remount(records[0], "rw")
	b.want(b.cni("ADD", "two", netns.Path(two), conf))
	if a := b.cni("ADD", "three", netns.Path(three), conf); a.code != 1 || !strings.Contains(a.out, `"code":50`) {
		t.Errorf("ADD: %s", a.out)
	}
	b.want(b.cni("DEL", "one", netns.Path(one), conf))
	b.want(b.cni("ADD", "three", netns.Path(three), conf))
	if a, c := b.address("two"), b.address("three"); a == c {
		t.Errorf("both have %s", a)
	}
}

// remount makes a directory read-only, or writable, until the test ends.
func (b *bed) remount(dir, how string) {
	b.t.Helper()
	mount := func(source, target, flags string) {
		if out, err := exec.Command("mount", "-o", flags, source, target).CombinedOutput(); err != nil {
			b.t.Fatalf("mount -o %s %s: %v: %s", flags, target, err, out)
		}
	}
	if how == "ro" {
		mount(dir, dir, "bind")
		b.t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				b.t.Error(err)
			}
		})
	}
	mount(dir, dir, "remount,bind,"+how)
}

// An agent waits for a scon-cni that works without an agent, and does not treat it as another
// agent.
func TestStartWhileAlone(t *testing.T) {
	b := newBed(t)
	pod := nstest.New(t)
	reached, goOn := b.pause("add-made")
	added := b.later("ADD", "c", netns.Path(pod), b.conf(), pauseEnv+"="+b.dir)
	reached()
	b.spawn()
	time.Sleep(2 * state.Dying) // an agent that is there already would be found out by now
	goOn()
	b.want(<-added)
	eventually(t, "the agent answers", func() bool {
		conn, err := net.Dial("unix", b.socket())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
}

// The agent is killed and restarted while many containers start: no address is leased twice,
// each attached container has a network, and nothing is left.
func TestKilledWhileManyCome(t *testing.T) {
	b := newBed(t)
	b.withPool(10)
	conf := b.conf()
	pods := make([]string, 30)
	for i := range pods {
		pods[i] = nstest.New(t)
	}
	answers := make([]answer, len(pods))
	slots := make(chan struct{}, 8)
	var all sync.WaitGroup
	for i, pod := range pods {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			answers[i] = b.cni("ADD", fmt.Sprint(i), netns.Path(pod), conf)
		})
	}
	eventually(t, "some have come", func() bool { return len(b.records()) > len(pods)/4 })
	b.kill()
	b.start()
	all.Wait()
	has := make(map[string]string)
	for i, a := range answers {
		if a.code != 0 {
			continue // its ADD was cut off
		}
		out := strings.Fields(nstest.Run(t, pods[i], "ip -br -4 addr show eth0"))
		addr := out[len(out)-1]
		if has[addr] != "" {
			t.Errorf("%s is of %s and %s", addr, has[addr], pods[i])
		}
		has[addr] = pods[i]
		b.ping(pods[i])
	}
	if len(has) < len(pods)/2 {
		t.Errorf("%d of %d have a network: %v", len(has), len(pods), answers)
	}
	for i, pod := range pods {
		b.want(b.cni("DEL", fmt.Sprint(i), netns.Path(pod), conf))
	}
	if left := b.state().Attachments; len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	b.stop()
	b.wantNothing()
}
