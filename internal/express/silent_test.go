package express

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/sysctl"
)

// A setting that cannot be read is not taken for one that the kernel does not have.
func TestUnreadSetting(t *testing.T) {
	s := silent{values: make(map[string]string), files: sysctl.NewReader()}
	defer s.files.Close()
	if s.read("ipv4/nothing"); s.limits.Unwatched != "" || s.timeIn("net/ipv4/nothing", time.Second) != never {
		t.Errorf("one that does not exist: %+v", s.limits)
	}
	const directory = "ipv4/conf"
	if s.read(directory); s.limits.Unwatched == "" || s.timeIn("net/"+directory, time.Second) != 0 {
		t.Errorf("one that cannot be read: %+v", s.limits)
	}
}
