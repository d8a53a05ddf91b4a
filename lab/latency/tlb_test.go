package latency

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A counter counts the events of every CPU.
func TestCounter(t *testing.T) {
	c, err := openCounter(event{unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_PAGE_FAULTS}, allCPUs(t))
	if errors.Is(err, errNoCounter) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.read()
	if err != nil {
		t.Fatal(err)
	}
	const pages = 1000
	memory, err := unix.Mmap(-1, 0, pages*unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	for i := range pages {
		memory[i*unix.Getpagesize()] = 1
	}
	after, err := c.read()
	if err != nil || after-before < pages {
		t.Errorf("%d page faults, %v; want %d at least", after-before, err, pages)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

// A machine without a counter reports an error that wraps errNoCounter.
func TestMissingCounter(t *testing.T) {
	_, err := openCounter(event{unix.PERF_TYPE_HW_CACHE, 0xffffff}, allCPUs(t))
	if !errors.Is(err, errNoCounter) || !strings.HasPrefix(err.Error(), "not available here: ") {
		t.Errorf("error %v", err)
	}
	for errno, want := range map[error]string{
		unix.ENOENT: "the kernel has no such counter", unix.EACCES: "see kernel.perf_event_paranoid", unix.EMFILE: unix.EMFILE.Error(),
	} {
		if got := whyNoCounter(errno); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q in it", errno, got, want)
		}
	}
}

// The table shows the misses of the worst round, only if they were counted.
func TestTLB(t *testing.T) {
	var nobody *tlb
	none, err := nobody.read()
	if none != nil || err != nil || none.since(none) != nil {
		t.Errorf("counts without counters: %+v, %v", none, err)
	}
	r := result(t)
	if text := strings.Join(r.footnotes(), "\n"); strings.Contains(text, "dTLB") {
		t.Errorf("misses without counters:\n%s", text)
	}
	r.Details["n8"].Rounds[1].TLB = &TLB{Loads: 100, Misses: 99}
	r.Details["n8"].Rounds[2].TLB = (&TLB{Loads: 1200, Misses: 130}).since(&TLB{Loads: 200, Misses: 5})
	if text := strings.Join(r.footnotes(), "\n"); !strings.Contains(text, "\nn8: 12 % of the dTLB's lookups missed.") {
		t.Errorf("the footnotes are\n%s", text)
	}
	if got := tlbMissed(r, "n8"); got != "12 %" {
		t.Errorf("%q missed", got)
	}
	r.NotAvailable = []string{dtlbMiss}
	if got := tlbMissed(r, "n8"); got != "not available here" {
		t.Errorf("%q missed", got)
	}
}
