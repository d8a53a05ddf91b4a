package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/state"
)

// remains describes a service that does not answer at its socket, and what it has left in a
// state directory and in the kernel: none after an orderly end, some after a crash. Without
// root only the socket is seen.
func (u unit) remains(dir, socket string) (why string, left []string) {
	s, _ := state.Read(u.Dir(dir)) // one that is corrupt or not readable is as good as none
	sockets := []string{socket}
	if u.Service == state.Pipe {
		sockets = append(sockets, pipe.Socket(dir))
	}
	for _, path := range sockets {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			left = append(left, "socket "+path)
		}
	}
	for _, name := range []string{"daemon.json", "lock"} {
		if path := filepath.Join(u.Dir(dir), name); exists(path) && state.CheckOwn(u.Dir(dir)) == nil {
			left = append(left, path)
		}
	}
	runs := ""
	if u.pinned != nil {
		var pins []string
		pins, runs = u.pinned(s.Netns)
		left = append(left, pins...)
	}
	switch {
	case runs != "" && !state.Held(u.Dir(dir)):
		return runs, nil
	case state.Held(u.Dir(dir)):
		return fmt.Sprintf("a process (pid %s) holds %s and does not answer at %s: it starts or ends, or its socket was removed",
			pidText(s.PID), filepath.Join(u.Dir(dir), "lock"), socket), nil
	case len(left) > 0:
		return fmt.Sprintf("it (pid %s) has ended without removing what is its own", pidText(s.PID)), left
	default:
		return "", nil
	}
}

func pidText(pid int) string {
	if pid == 0 {
		return "not known"
	}
	return fmt.Sprint(pid)
}

// afterCrash is what to do about what a crash has left.
const afterCrash = "'scon up', or systemd, starts another, which takes it over; 'scon down' removes it"

// serviceFindings say which services hang or have crashed.
func (t *tool) serviceFindings(services []serviceStatus) (all []api.Finding) {
	for i, s := range services {
		name := t.units[i].name
		switch {
		case s.Hangs:
			all = append(all, api.Finding{Level: "fail", What: s.Error})
		case s.Why != "":
			f := api.Finding{Level: "warn", What: fmt.Sprintf("no %s answers: %s", name, s.Why), Remedy: "see its log; 'scon down' stops it, or says how"}
			if len(s.Left) > 0 {
				f.Why, f.Remedy = "left: "+strings.Join(s.Left, ", "), afterCrash
			}
			all = append(all, f)
		}
	}
	return all
}

// hanging returns an error if a service hangs.
func hanging(services []serviceStatus) error {
	for _, s := range services {
		if s.Hangs {
			return errors.New(s.Error)
		}
	}
	return nil
}

// condition says in one line what has become of a service that does not answer, "" if it was
// not started.
func (s serviceStatus) condition() string {
	switch {
	case s.Error != "":
		return plain.Text(s.Error)
	case len(s.Left) > 0:
		return plain.Text(fmt.Sprintf("crashed: %s: %s; %s", s.Why, strings.Join(s.Left, ", "), afterCrash))
	default:
		return plain.Text(s.Why)
	}
}

// ask fills in what a service says of itself, or what is left of it.
func (s *serviceStatus) ask(u unit, dir string) {
	p, err := u.process(s.Socket)
	switch {
	case err != nil:
		s.Error, s.Hangs = err.Error(), errors.Is(err, api.ErrHangs)
	case p.PID == 0:
		s.Why, s.Left = u.remains(dir, s.Socket)
	}
	s.Running, s.PID, s.Version = p.PID != 0, p.PID, p.Version
}
