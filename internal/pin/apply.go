package pin

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Result is the outcome of a setting.
type Result struct {
	Setting
	Before string `json:"before"`
	// Effective is the effective affinity of an interrupt.
	Effective string `json:"effective,omitempty"`
	// Refused is why the kernel refused it, "" if it did not.
	Refused string `json:"refused,omitempty"`
}

// Apply applies a plan. It first restores the settings of an earlier plan. The previous
// values are on disk before the first change. A setting that the kernel refuses is
// kept and reported; any other error undoes everything.
func (h *Host) Apply(p Plan) (results []Result, err error) {
	unlock, err := h.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := h.restore(); err != nil {
		return nil, fmt.Errorf("restore what was applied before: %w", err)
	}
	r := record{Boot: h.bootID(), Plan: p.Options, Settings: []recorded{}}
	for _, s := range p.Settings {
		before, err := h.get(s)
		if err != nil {
			return nil, err
		}
		r.Settings = append(r.Settings, recorded{s, before})
	}
	if err := h.step("record"); err != nil {
		return nil, err
	}
	if err := h.writeRecord(r); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		if _, undone := h.restore(); undone != nil {
			err = errors.Join(err, fmt.Errorf("undo what was applied: %w", undone))
		}
	}()
	for _, s := range r.Settings {
		if err := h.step(s.Place()); err != nil {
			return nil, err
		}
		result := Result{Setting: s.Setting, Before: s.Before}
		switch err := h.set(s.Setting, s.Want); {
		case refused(err):
			result.Refused = err.Error()
		case err != nil:
			return nil, err
		}
		results = append(results, result)
	}
	for i, r := range results {
		results[i].Effective = h.effective(r.Setting)
	}
	return results, nil
}

// refused reports whether an error is a refusal: EIO for an interrupt that the kernel
// manages, EINVAL for CPUs that it does not accept, ENOENT for a queue without the
// setting.
func refused(err error) bool {
	for _, no := range []error{unix.EIO, unix.EINVAL, unix.EPERM, unix.EOPNOTSUPP, unix.EBUSY, ErrGone, errNoThread} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// step is where tests inject faults.
func (h *Host) step(name string) error {
	if h.fault == nil {
		return nil
	}
	return h.fault(name)
}
