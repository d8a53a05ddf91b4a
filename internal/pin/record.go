package pin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/scon-project/scon/internal/state"
)

// record is what Restore needs, on disk from before the first change until
// everything is as it was.
type record struct {
	// Boot is that of the changes: most of them end with it.
	Boot     string     `json:"boot"`
	Plan     Options    `json:"plan"`
	Settings []recorded `json:"settings"`
}

// recorded is a setting that was or will be changed.
type recorded struct {
	Setting
	Before string `json:"before"`
}

// ErrCorrupt is wrapped when the record cannot be read.
var ErrCorrupt = errors.New("corrupt")

func (h *Host) recordFile() string { return filepath.Join(h.State, "pin.json") }

// readRecord returns nil if nothing is applied.
func (h *Host) readRecord() (*record, error) {
	content, err := os.ReadFile(h.recordFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was there before: %w", err)
	}
	r := new(record)
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read what was there before: %s: %w: %v", h.recordFile(), ErrCorrupt, err)
	}
	return r, nil
}

func (h *Host) writeRecord(r record) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(h.recordFile(), append(content, '\n')); err != nil {
		return fmt.Errorf("write down what was there before: %w", err)
	}
	return nil
}

func (h *Host) removeRecord() error {
	if err := os.Remove(h.recordFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what was there before: %w", err)
	}
	return syncDir(h.State)
}

// bootID identifies a boot.
func (h *Host) bootID() string {
	id, _ := h.read("/proc/sys/kernel/random/boot_id")
	return id
}

// ErrBusy is wrapped when another process changes the same.
var ErrBusy = errors.New("another 'scon pin' is at work")

// lock keeps others out until unlock is called or the process ends.
func (h *Host) lock() (unlock func(), err error) {
	if err := state.Make(h.State); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(h.State, "pin.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the placement: %w", err)
	}
	if err := state.Flock(f, patience); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), ErrBusy)
	}
	return func() { f.Close() }, nil
}

// patience is how long somebody else may be at work.
const patience = 2 * time.Second
