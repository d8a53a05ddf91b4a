package startup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/control"
)

// pendingStart is a container whose device is made in place before its start. Its file outlives
// the agent: without the device the container must not start. scon-oci looks for it itself if no
// agent answers.
type pendingStart struct {
	Conf    json.RawMessage `json:"conf"` // of the network
	PidFile string          `json:"pid_file"`
	Bundle  string          `json:"bundle"`
	Began   uint64          `json:"began,omitempty"` // its process did; 0 until the runtime has made it

	path string
}

// idAt is where the ID begins in a file's name, HASH@ID.
const idAt = 13

// newPending returns a container without a file. Creates of one ID, of which the runtime refuses
// all but one, have a file each.
func (s *store) newPending(o control.OCI, conf *cni.Conf) pendingStart {
	sum := sha256.Sum256([]byte(o.Bundle + "\x00" + o.PidFile))
	return pendingStart{
		Conf: conf.Raw, PidFile: o.PidFile, Bundle: o.Bundle,
		path: filepath.Join(s.dir, "pending", hex.EncodeToString(sum[:6])+"@"+o.ID),
	}
}

// await writes the file of a container. made reports that there was none, so that the create, if
// it fails, has to remove it.
func (p pendingStart) await() (made bool, err error) {
	_, err = os.Lstat(p.path)
	return errors.Is(err, fs.ErrNotExist), p.write()
}

func (p pendingStart) write() error {
	b, err := json.Marshal(p)
	if err == nil {
		err = writeFile(p.path, b)
	}
	if err != nil {
		return fmt.Errorf("record a device that is made before the start: %w", err)
	}
	return nil
}

// notePending notes when the process of a container that is created now began: another process
// may have its number at the start.
func (s *store) notePending(o control.OCI) error {
	all, err := s.pendingOf(o.ID)
	for _, p := range all {
		if p.Bundle != o.Bundle || p.PidFile != o.PidFile {
			continue
		}
		pid, failed := p.pid()
		if failed == nil {
			p.Began, failed = beginOf(pid)
		}
		if failed == nil {
			failed = p.write()
		}
		err = errors.Join(err, failed)
	}
	return err
}

// pid returns the number of the container's process.
func (p pendingStart) pid() (int, error) {
	text, err := os.ReadFile(p.PidFile)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.PidFile, err)
	}
	return pid, nil
}

// beginOf returns when a process began, in ticks since boot, which it shares with no other process
// of its number.
func beginOf(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// "42 (name) S ...": the name may contain anything; the begin is the 20th field behind it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: got %q", pid, stat)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// pendingOf returns the creates of an ID that wait for its start; "" is any ID.
func (s *store) pendingOf(id string) (all []pendingStart, err error) {
	dir := filepath.Join(s.dir, "pending")
	files, err := os.ReadDir(dir)
	for _, f := range files {
		name := f.Name()
		if strings.HasPrefix(name, ".") || id != "" && name[min(idAt, len(name)):] != id {
			continue
		}
		p := pendingStart{path: filepath.Join(dir, name)}
		b, failed := os.ReadFile(p.path)
		if failed == nil {
			failed = json.Unmarshal(b, &p)
		}
		if failed == nil {
			all = append(all, p)
		} else if !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read which device is made before the start: %w", err)
	}
	return all, nil
}

// removePending removes the files of an ID, also those that cannot be read.
func (s *store) removePending(id string) error {
	files, err := os.ReadDir(filepath.Join(s.dir, "pending"))
	for _, f := range files {
		if name := f.Name(); name[min(idAt, len(name)):] == id {
			err = errors.Join(err, removeFile(filepath.Join(s.dir, "pending", name)))
		}
	}
	return err
}

// forgetPending removes the files of containers whose bundle is gone.
func (s *store) forgetPending() error {
	all, err := s.pendingOf("")
	for _, p := range all {
		if _, gone := os.Stat(p.Bundle); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, removeFile(p.path))
		}
	}
	return err
}

// removeFile removes a file that another request may have removed.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ociStart makes the device in place for a container that could not get a pooled namespace; its
// process exists now.
func (a *Agent) ociStart(o control.OCI) error {
	all, err := a.store.pendingOf(o.ID)
	if err != nil || len(all) == 0 {
		return err
	}
	p, pid, err := created(all)
	if err != nil {
		return fmt.Errorf("find the process of container %s: %w", o.ID, err)
	}
	c, err := cni.Parse(p.Conf)
	if err != nil {
		return err
	}
	// An earlier agent may have ended when it had made the device.
	if r := a.records.get(keyOf(c.Name, o.ID, pooledName)); r == nil || r.Bundle != p.Bundle {
		at := cni.Attachment{ContainerID: o.ID, IfName: pooledName, Netns: fmt.Sprintf("/proc/%d/ns/net", pid)}
		if _, err = a.add(0, at, c, p.Bundle); err != nil {
			return err
		}
	}
	return a.store.removePending(o.ID)
}

// created returns the one of some creates of an ID that the runtime has carried out, and the
// container's process.
func created(all []pendingStart) (of pendingStart, pid int, err error) {
	n := 0
	for _, p := range all {
		number, failed := p.pid()
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		of, pid, n = p, number, n+1
	}
	switch {
	case n == 0:
		return of, 0, err
	case n > 1:
		return of, 0, fmt.Errorf("%d creates of it have a process: delete it, and create it again", n)
	}
	if began, err := beginOf(pid); err != nil || of.Began != 0 && began != of.Began {
		return of, 0, fmt.Errorf("process %d has ended: delete the container, and create it again", pid)
	}
	return of, pid, nil
}
