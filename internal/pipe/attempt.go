package pipe

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// attempt controls the retries of something that is created on first use, such as a BPF
// program. A lack of resources is retried, with increasing pauses; a lack of kernel support is
// not. The broker's lock guards it.
type attempt struct {
	err   error         // of the last attempt; nil: success, or no attempt yet
	after time.Time     // earliest time of the next attempt; zero: never
	pause time.Duration // before the next attempt
}

const (
	firstPause = time.Second
	mostPause  = time.Minute
)

// due reports whether an attempt may be made now.
func (a *attempt) due(now time.Time) bool {
	return a.err == nil || !a.after.IsZero() && !now.Before(a.after)
}

// done records the result of an attempt.
func (a *attempt) done(err error, now time.Time) {
	if err == nil || isPermanent(err) {
		*a = attempt{err: err}
		return
	}
	a.pause = min(max(2*a.pause, firstPause), mostPause)
	a.err, a.after = err, now.Add(a.pause)
}

// isPermanent reports whether a retry on this machine cannot succeed.
func isPermanent(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.EBUSY, unix.EINTR, unix.ENOSPC} {
		if errors.Is(err, errno) {
			return false
		}
	}
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) || errors.Is(err, ebpf.ErrNotSupported) {
		return true
	}
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.EOPNOTSUPP} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
