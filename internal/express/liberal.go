package express

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/sysctl"
)

// liberal sets conntrack's tcp_be_liberal where the setting short_connections asks for it, and
// puts it back. That SCON has set it is a directory among the pins, which outlasts a daemon.
type liberal struct {
	want bool
	mark string
	done bool // it was set, or could not be
}

func newLiberal(want bool, pinDir string) liberal {
	return liberal{want: want, mark: filepath.Join(pinDir, "tcp_be_liberal")}
}

// set sets it if it is 0 and that was not tried before.
func (l *liberal) set(value string) error {
	if !l.want || l.done || value != "0" {
		return nil
	}
	l.done = true
	if err := os.Mkdir(l.mark, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("noting for short_connections that SCON sets tcp_be_liberal: %w", err)
	}
	if err := writeLiberal("1"); err != nil {
		return errors.Join(fmt.Errorf("short_connections: %w; set it in /etc/sysctl.d", err), os.Remove(l.mark))
	}
	return nil
}

// putBack makes it 0 again if SCON has set it, this daemon or an earlier one. Connections that
// are established stay liberal, since conntrack has not seen all of their packets.
func (l *liberal) putBack() error {
	if _, err := os.Stat(l.mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ct, err := conntrack.Open()
	if err == nil {
		err = errors.Join(ct.MakeAllLiberal(), ct.Close())
	}
	return errors.Join(err, writeLiberal("0"), os.Remove(l.mark))
}

func writeLiberal(value string) error {
	return sysctl.Set([]sysctl.Setting{{Name: "net/" + beLiberal, Value: value}})
}
