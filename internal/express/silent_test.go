package express

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Settings that cannot be read once are as they were. Those that cannot be read for longer are
// not taken for ones that the kernel does not have.
func TestUnreadSettings(t *testing.T) {
	nstest.Do(t, nstest.New(t), func() {
		s := silent{files: sysctl.NewReader()}
		defer s.files.Close()
		poll := func() (changed string) { return s.poll([]string{"lo"}, time.Minute) }
		poll()
		before := s.limits
		if before.Unwatched != "" || before.HidesEnds || min(before.TCP, before.UDP, before.Unassured, before.Neighbour, before.Reachable) <= 0 {
			t.Fatalf("%+v", before)
		}
		for range 2 {
			s.files.Close()
			var limit unix.Rlimit
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
				t.Fatal(err)
			}
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}, nil); err != nil {
				t.Fatal(err)
			}
			once, first := poll(), s.limits
			poll()
			longer := s.limits
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
				t.Fatal(err)
			}
			if once != "" || first != before {
				t.Errorf("not read once: changed %q, %+v", once, first)
			}
			if longer.Unwatched == "" || !longer.HidesEnds || max(longer.TCP, longer.UDP, longer.Unassured, longer.Neighbour, longer.Reachable) > 0 {
				t.Errorf("not read twice: %+v", longer)
			}
			if poll(); s.limits != before {
				t.Errorf("read again: %+v", s.limits)
			}
		}
	})
}
