package upgrade

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// ends are the methods to end a daemon before its successor starts.
var ends = map[string]func(*scontest.Process){
	"killed":     (*scontest.Process).Kill,
	"terminated": (*scontest.Process).Terminate,
}

// A new release replaces one that was killed or stopped. It adopts the Conentries if the
// old one was killed and has the same layout; otherwise it starts with an empty table.
// Traffic is not affected.
func TestReplace(t *testing.T) {
	t.Parallel()
	for how, end := range ends {
		for _, c := range []struct {
			from, to *release
			kept     bool
		}{
			{v1, v2, true},  // upgrade
			{v2, v1, true},  // downgrade
			{v1, v3, false}, // upgrade to another layout
			{v3, v1, false}, // and back
		} {
			t.Run(fmt.Sprintf("%s %s to %s", how, c.from.name, c.to.name), func(t *testing.T) {
				b := up(t, c.from, scontest.Layout{})
				f := b.StartTraffic()
				f.WaitExpress()
				old := b.table()
				end(b.Daemon)
				b.replace(c.to)
				f.WaitExpress()
				b.wantOneEach()
				kept, now := c.kept && how == "killed", b.table()
				if same := now.id == old.id; same != kept {
					t.Errorf("the table is the same: %v, want %v", same, kept)
				}
				if kept && now.express < old.express {
					t.Errorf("Conentries are gone: %d express packets, were %d", now.express, old.express)
				}
				if !kept {
					awaitGone(t, old.id)
				}
				f.WantUnbroken()
				b.WantNoInvalid()
			})
		}
	}
}

// Releases with both layouts alternate under continuous traffic.
func TestAlternatingReleases(t *testing.T) {
	t.Parallel()
	b := up(t, v1, scontest.Layout{})
	f := b.StartTraffic()
	c := b.Incoming("udp", 1)
	bursts := scontest.SendNumbers(t, c.Client, c.Server, 8, 2*time.Millisecond)
	answers := scontest.SendNumbers(t, c.Server, c.Client, 1, 2*time.Millisecond)
	f.WaitExpress()
	for _, next := range []*release{v2, v1, v2, v3, v1, v3, v2} {
		b.Daemon.Kill()
		b.replace(next)
		f.WaitExpress()
		c.WaitExpress(nil)
		b.wantOneEach()
	}
	f.WantUnbroken()
	bursts.WantAll(t, "bursts")
	answers.WantAll(t, "answers")
	b.WantNoInvalid()
}

// Once a release with another layout has installed its table, no packet uses the old
// table, even while the old programs are attached.
func TestOneTableAtATime(t *testing.T) {
	t.Parallel()
	b := up(t, v1, scontest.Layout{Containers: 8})
	f := b.StartTraffic()
	f.WaitExpress()
	before := b.table()
	old := b.openTable()
	defer old.Close()
	b.Daemon.Kill()
	b.SCON = v3.program
	b.Daemon = b.Launch(b.Task())
	scontest.Eventually(t, "the new table is installed", func() error {
		if b.table().id == before.id {
			return errors.New("the old table is pinned")
		}
		return nil
	})
	express := scontest.ExpressIn(t, old)
	b.Daemon.WaitReady()
	f.WaitExpress()
	if after := scontest.ExpressIn(t, old); after != express {
		t.Errorf("%d packets were express by the old table", after-express)
	}
	f.WantUnbroken()
}

// A release with other settings releases the containers that they exclude and keeps or
// hooks the others; traffic continues.
func TestOtherSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*config.Config)
		kept    bool // the table
		express bool // the traffic afterwards
	}{
		"a larger table":       {func(c *config.Config) { c.Connections *= 2 }, false, true},
		"a smaller table":      {func(c *config.Config) { c.Connections /= 4 }, false, true},
		"other leases":         {func(c *config.Config) { c.Admit, c.LeasePackets = 16, 100 }, true, true},
		"devices by name":      {func(c *config.Config) { c.Bridges, c.Uplinks = config.Devices{lab.Bridge}, config.Devices{lab.Uplink} }, true, true},
		"another bridge":       {func(c *config.Config) { c.Bridges = config.Devices{"br9"} }, true, false},
		"another uplink":       {func(c *config.Config) { c.Uplinks = config.Devices{"up9"} }, true, false},
		"no share for any one": {func(c *config.Config) { c.PerContainerShare = 1 }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := up(t, v1, scontest.Layout{})
			b.Sh(lab.Device, `
				ip link add br9 type bridge
				ip link add up9 type veth peer name up9peer
				ip link set up9 up`)
			f := b.StartTraffic()
			f.WaitExpress()
			old := b.table()
			b.Daemon.Kill()
			c.change(&b.Config)
			b.replace(v2)
			if same := b.table().id == old.id; same != c.kept {
				t.Errorf("the table is the same: %v, want %v", same, c.kept)
			}
			if c.express {
				f.WaitExpress()
				b.wantOneEach()
			} else {
				f.Proceed()
				before := b.table()
				f.Proceed()
				if after := b.table(); after != before {
					t.Errorf("express packets: %+v, before %+v", after, before)
				}
			}
			f.WantUnbroken()
			b.WantNoInvalid()
		})
	}
}

// A daemon that reloads keeps its process, its table and its programs with good settings, and
// everything with bad ones; traffic continues.
func TestReload(t *testing.T) {
	t.Parallel()
	b := up(t, v1, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	before, old := b.Status(), b.table()
	file := settingsOf(t, before.PID)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(settings string) (string, error) {
		if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(v1.program, "reload", "--state-dir", b.StateDir()).CombinedOutput()
		return string(out), err
	}
	admit := regexp.MustCompile("(?m)^admit: .*")
	if out, err := reload(admit.ReplaceAllString(string(text), "admit: 1")); err == nil || !strings.Contains(out, "admit is 1") {
		t.Errorf("reload of bad settings: %v: %s", err, out)
	}
	f.Proceed()
	if s := b.Status(); s.PID != before.PID || s.StartedMS != before.StartedMS || s.State != before.State {
		t.Errorf("with bad settings pid %d, started %d, %s; before %d, %d, %s", s.PID, s.StartedMS, s.State, before.PID, before.StartedMS, before.State)
	}
	if out, err := reload(admit.ReplaceAllString(string(text), "admit: 16")); err != nil {
		t.Fatalf("reload of good settings: %v: %s", err, out)
	}
	if s := b.Status(); s.PID != before.PID || s.StartedMS == before.StartedMS || s.Totals.Entries == 0 {
		t.Errorf("with good settings pid %d, started %d, %d Conentries; before %d, %d", s.PID, s.StartedMS, s.Totals.Entries, before.PID, before.StartedMS)
	}
	if b.table().id != old.id {
		t.Error("the table is another one")
	}
	f.WaitExpress()
	b.wantOneEach()
	f.WantUnbroken()
	b.WantNoInvalid()
}

// settingsOf returns the file of a daemon's settings.
func settingsOf(t *testing.T, pid int) string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(string(line), "\x00")
	i := slices.Index(args, "--config")
	if i < 0 {
		t.Fatalf("the daemon has no --config: %q", args)
	}
	return args[i+1]
}

// A release that starts beside a running one fails with an error that states the reason.
func TestSecondReleaseIsRefused(t *testing.T) {
	t.Parallel()
	b := up(t, v1, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	for _, r := range []*release{v2, v3} {
		task := b.Task()
		task.SCON = r.program
		if word := b.Launch(task).Refused(); !strings.Contains(word, "another SCON is running") {
			t.Errorf("the error of %s is %q", r.name, word)
		}
	}
	if s := b.Status(); s.Version != v1.name {
		t.Errorf("%+v", s)
	}
	f.WaitExpress()
	b.wantOneEach()
	f.WantUnbroken()
}

// bed is a lab in which a release runs.
type bed struct{ *scontest.Bed }

func up(t *testing.T, r *release, l scontest.Layout) *bed {
	t.Helper()
	b := &bed{scontest.New(t, l)}
	b.SCON = r.program
	b.Up()
	return b
}

// replace starts another *release and waits until it answers.
func (b *bed) replace(r *release) {
	b.T.Helper()
	b.SCON = r.program
	b.Up()
	if s := b.Status(); s.Version != r.name || s.Layout != r.layout {
		b.T.Errorf("%s with layout %d answers, want %s with %d", s.Version, s.Layout, r.name, r.layout)
	}
}

// wantOneEach fails unless each hook has exactly one program.
func (b *bed) wantOneEach() {
	b.T.Helper()
	for _, dev := range []string{lab.Uplink, lab.Port(1)} {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if n := b.Programs(dev, at); n != 1 {
				b.T.Errorf("%s %v: %d programs", dev, at, n)
			}
		}
	}
}

// table is a snapshot of the pinned table, which it does not hold open.
type table struct {
	id      ebpf.MapID
	express uint64 // packets
}

// table returns a snapshot of the pinned table.
func (b *bed) table() table {
	b.T.Helper()
	m := b.openTable()
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		b.T.Fatal(err)
	}
	id, _ := info.ID()
	return table{id, scontest.ExpressIn(b.T, m)}
}

// openTable opens the pinned table, which may be replaced at the same time.
func (b *bed) openTable() (m *ebpf.Map) {
	b.T.Helper()
	scontest.Eventually(b.T, "a table is pinned", func() (err error) {
		paths := b.Pins("conentries")
		if len(paths) != 1 {
			return fmt.Errorf("pins: %q", paths)
		}
		m, err = ebpf.LoadPinnedMap(paths[0], nil)
		return err
	})
	return m
}

// awaitGone waits until a map has no references: the kernel drops those of programs after
// RCU's grace periods (bpf_prog_put in kernel/bpf/syscall.c).
func awaitGone(t *testing.T, id ebpf.MapID) {
	t.Helper()
	scontest.Eventually(t, "the end of the old table", func() error {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		m.Close()
		return errors.New("it still exists")
	})
}
