package clitest

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// remove ends the services of a state directory, and removes it and the namespaces, when its
// standard input ends.
const remove = `cat
state=$1
shift
for f in "$state"/daemon.json "$state"/*/daemon.json; do
	[ -e "$f" ] || continue
	pid=$(sed -n 's/^  "pid": \([0-9]*\),$/\1/p' "$f")
	runs() { [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = scon ]; }
	runs && kill "$pid" && timeout 10 tail --pid="$pid" --follow /dev/null
	runs && kill -9 "$pid"
done
rm -rf "$state"
for name; do
	[ ! -e "/run/netns/$name" ] || ip netns delete "$name"
done
`

// removeAtEnd has a process of its own remove what a test has made: when end is called, and
// when the test is killed.
func removeAtEnd(state string, namespaces ...string) (end func() error, err error) {
	cmd := exec.Command("sh", append([]string{"-c", remove, "sh", state}, namespaces...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // whatever kills the test's group
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		if err := errors.Join(alive.Close(), cmd.Wait()); err != nil {
			return fmt.Errorf("remove what the test has made: %w", err)
		}
		return nil
	}, nil
}
