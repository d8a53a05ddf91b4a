package pin

import (
	"errors"
	"fmt"
	"slices"
)

// Restored is what became of a setting that was restored.
type Restored struct {
	Setting
	Before string `json:"before"`
	// Left says why it was left: what it was of is gone. "" otherwise.
	Left string `json:"left,omitempty"`
}

// Restore brings back what was there before Apply, in the opposite order, also
// when Apply or an earlier Restore was cut off. After a boot only files are
// left to restore. It returns nothing if nothing was applied.
func (h *Host) Restore() ([]Restored, error) {
	unlock, err := h.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return h.restore()
}

// restore goes on where one setting cannot be restored; then the record stays.
func (h *Host) restore() ([]Restored, error) {
	r, err := h.readRecord()
	if r == nil || err != nil {
		return nil, err
	}
	booted := r.Boot != h.bootID()
	var list []Restored
	var failed error
	for _, s := range slices.Backward(r.Settings) {
		done := Restored{Setting: s.Setting, Before: s.Before}
		if booted && s.Kind != kindIrqbalance {
			done.Left = "it ended with the boot"
			list = append(list, done)
			continue
		}
		if err := h.step("restore " + s.Place()); err != nil {
			return list, err
		}
		switch err := h.back(s); {
		case errors.Is(err, ErrGone), errors.Is(err, errNoThread):
			done.Left = err.Error()
		case err != nil:
			failed = errors.Join(failed, err)
		}
		list = append(list, done)
	}
	if failed != nil {
		return list, fmt.Errorf("restore what was there before: %w", failed)
	}
	if err := h.step("forget"); err != nil {
		return list, err
	}
	return list, h.removeRecord()
}

// back writes a setting's value from before, unless it has it.
func (h *Host) back(s recorded) error {
	now, err := h.get(s.Setting)
	if err != nil || now == s.Before {
		return err
	}
	return h.set(s.Setting, s.Before)
}
