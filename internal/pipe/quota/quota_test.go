package quota

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func owner(netns uint64, cgroup string) Owner { return Owner{netns, cgroup} }

// takeAll takes units until one is refused, and returns their number.
func takeAll(l *Ledger, o Owner, r Resource) (n int64) {
	for l.Take(o, r, 1) == nil {
		n++
	}
	return n
}

// When each container takes as much as it can, some is left for the next one.
func TestLeavesRoom(t *testing.T) {
	l := NewLedger(Totals{Files: 4096}, 50)
	for i, want := range []int64{2048, 1024, 512, 256, 128, 64} {
		if got := takeAll(l, owner(uint64(i), fmt.Sprint("/", i)), Files); got != want {
			t.Errorf("container %d got %d files, want %d", i, got, want)
		}
	}
	if used := l.Used(Files); used != 4032 {
		t.Errorf("%d are taken", used)
	}
}

// A container that creates network namespaces has one cgroup, and one that changes cgroups has
// one network namespace: neither exceeds one account's limit.
func TestManyNamespaces(t *testing.T) {
	for name, of := range map[string]func(i int) Owner{
		"namespaces": func(i int) Owner { return owner(uint64(i), "/a") },
		"cgroups":    func(i int) Owner { return owner(1, fmt.Sprint("/", i)) },
	} {
		l := NewLedger(Totals{Memory: 1000}, 50)
		sum := int64(0)
		for i := range 100 {
			sum += takeAll(l, of(i), Memory)
		}
		if sum != 500 {
			t.Errorf("%s: %d of 1000", name, sum)
		}
	}
}

// All owners whose cgroup is not determined share one account with a lower limit.
func TestUndetermined(t *testing.T) {
	l := NewLedger(Totals{Names: 800}, 50)
	sum := int64(0)
	for i := range 100 {
		sum += takeAll(l, owner(uint64(i), ""), Names)
	}
	if sum > 100 || sum < 90 {
		t.Errorf("%d of 800, want an eighth at most", sum)
	}
	if got := takeAll(l, owner(1000, "/a"), Names); got < 300 {
		t.Errorf("a container gets %d beside them", got)
	}
}

func TestGiveBack(t *testing.T) {
	l := NewLedger(Totals{Files: 10, Memory: 10}, 50)
	o := owner(1, "/a")
	if err := l.Take(o, Files, 5); err != nil {
		t.Fatal(err)
	}
	err := l.Take(o, Files, 1)
	var exceeded *Exceeded
	if !errors.As(err, &exceeded) || !errors.Is(err, unix.EMFILE) || exceeded.Used != 5 || exceeded.Limit != 5 {
		t.Errorf("%v", err)
	}
	if err := l.Take(o, Memory, 6); !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("%v", err)
	}
	l.Give(o, Files, 5)
	if err := l.Take(o, Files, 1<<62); err == nil {
		t.Error("more than the total was taken")
	}
	if len(l.by) != 0 || l.Used(Files) != 0 {
		t.Errorf("%d accounts are left", len(l.by))
	}
}

func TestCgroup(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for content, want := range map[string]string{
		"0::/system.slice/docker-" + id + ".scope\n":                                                             "/system.slice/docker-" + id + ".scope",
		"0::/system.slice/docker-" + id + ".scope/mine/42\n":                                                     "/system.slice/docker-" + id + ".scope",
		"0::/docker/" + id + "/mine\n":                                                                           "/docker/" + id,
		"0::/kubepods/burstable/pod12/" + id + "/x\n":                                                            "/kubepods/burstable/pod12/" + id,
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope/init\n": "/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope",
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container\n":        "/user.slice/user-1000.slice/user@1000.service",
		"0::/lxc.payload.web/system.slice/cron.service\n":                                                        "/lxc.payload.web",
		"0::/lxc/web/mine/more\n":                                                                                "/lxc/web",
		"0::/\n":                                                                                                 "/",
		"3:cpuset:/\n1:name=systemd:/docker/" + id + "\n0::/\n":                                                  "/docker/" + id,
		"1:name=systemd:/docker/x\n0::/a/b/c\n":                                                                  "/a/b",
		"0::/../other/a/b\n":                                                                                     "/other/a",
		"0::/a (deleted)\n":                                                                                      "/a",
		"":                                                                                                       "",
		"0::\n":                                                                                                  "",
		"garbage":                                                                                                "",
	} {
		if got := Cgroup(content); got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
}

// FuzzCgroup: names of cgroups within a container's cgroup do not change its account.
func FuzzCgroup(f *testing.F) {
	f.Add("x/y")
	f.Add("../..")
	f.Add("a.scope\n0::/z")
	f.Fuzz(func(t *testing.T, below string) {
		_ = Cgroup(below)
		if strings.ContainsAny(below, "\n") || slices.Contains(strings.Split(below, "/"), "..") {
			return // the kernel writes \012, and no ".." below
		}
		if got := Cgroup("0::/system.slice/docker-1.scope/" + below + "\n"); got != "/system.slice/docker-1.scope" {
			t.Errorf("%q: %q", below, got)
		}
	})
}

// An owner with one value waits for one value of each other owner, not for all of them.
func TestQueue(t *testing.T) {
	var q Queue[string]
	many, few, one := owner(1, "/many"), owner(2, "/few"), owner(3, "/one")
	for i := range 5 {
		q.Push(many, fmt.Sprint("m", i))
	}
	q.Push(few, "f0")
	q.Push(few, "f1")
	q.Push(one, "o0")
	var got []string
	for q.Len() > 0 {
		v, _ := q.Pop()
		got = append(got, v)
	}
	if want := []string{"m0", "f0", "o0", "m1", "f1", "m2", "m3", "m4"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Yield removes the newest value of the owner with the most values, until all have equally many.
func TestYield(t *testing.T) {
	var q Queue[string]
	many, one := owner(1, "/many"), owner(2, "/one")
	for i := range 3 {
		q.Push(many, fmt.Sprint(i))
	}
	if _, ok := q.Yield(many); ok {
		t.Error("an owner has displaced its own value")
	}
	if v, ok := q.Yield(one); !ok || v != "2" || q.Len() != 2 {
		t.Errorf("%q, %v, %d are left", v, ok, q.Len())
	}
	q.Push(one, "x")
	if _, ok := q.Yield(one); ok {
		t.Error("a value was removed although both have equally many")
	}
}

// Calls of one owner that never return do not block another owner.
func TestGate(t *testing.T) {
	g := NewGate(4)
	stuck, other := owner(1, "/stuck"), owner(2, "/other")
	for range 2 {
		if !g.Enter(stuck, time.Now().Add(time.Minute)) {
			t.Fatal("refused")
		}
	}
	for range 100 {
		if g.Enter(stuck, time.Now()) {
			t.Fatal("a third call was admitted")
		}
	}
	for range 100 {
		if !g.Enter(other, time.Now().Add(time.Minute)) {
			t.Fatal("the other owner has to wait")
		}
		g.Leave(other)
	}
	waits := make(chan bool)
	go func() { waits <- g.Enter(stuck, time.Now().Add(time.Minute)) }()
	g.Leave(stuck)
	if !<-waits {
		t.Error("the waiting call was not admitted")
	}
}

// Start admits like Enter, without a goroutine that waits.
func TestGateStart(t *testing.T) {
	g := NewGate(4)
	stuck, other := owner(1, "/stuck"), owner(2, "/other")
	started := make(map[Owner]int)
	start := func(o Owner) { g.Start(o, func() { started[o]++ }) }
	for range 100 {
		start(stuck)
	}
	start(other)
	if started[stuck] != 2 || started[other] != 1 {
		t.Fatalf("%v", started)
	}
	g.Leave(other)
	g.Leave(stuck)
	if started[stuck] != 3 {
		t.Errorf("%v after the end of two calls", started)
	}
}

// The limit of processors is read as the kernel prints it.
func TestParseCPUMax(t *testing.T) {
	for content, want := range map[string]float64{
		"5000 100000\n": 0.05, "max 100000\n": 0, "200000 100000": 2, "": 0, "5000": 0, "5000 0": 0, "a b": 0,
	} {
		if got := parseCPUMax(content); got != want {
			t.Errorf("%q: %v, want %v", content, got, want)
		}
	}
}

// Calls that are taken back, or have waited too long, leave nothing, also behind calls of an
// owner without room.
func TestGateForgets(t *testing.T) {
	g := NewGate(2)
	o := owner(1, "/a")
	if !g.Enter(o, time.Now().Add(time.Minute)) {
		t.Fatal("the first call is not admitted")
	}
	ran := false
	first := g.Start(o, func() { ran = true })
	for range 100 {
		g.Start(o, func() { t.Error("a call that was taken back is admitted") })()
		if g.Enter(o, time.Now().Add(time.Microsecond)) {
			t.Fatal("a call is admitted without room")
		}
	}
	if n := g.waiting.Len(); n != 1 {
		t.Errorf("%d calls wait, want 1", n)
	}
	g.Leave(o)
	if !ran || g.waiting.Len() != 0 {
		t.Errorf("the call that waits has run: %v; %d wait", ran, g.waiting.Len())
	}
	first() // it is admitted already
	g.Leave(o)
}
