package docker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/state"
)

// store keeps one file for each network, written atomically.
//
//	lock        held by the driver
//	ID.json     a network with its endpoints
type store struct {
	dir  string
	lock *os.File
}

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of networks: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of networks: %w", err)
	}
	if err := state.Flock(lock, state.Dying); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another driver uses it; set docker.directory to another directory")
		}
		return nil, fmt.Errorf("lock the directory of networks %s: %w", dir, err)
	}
	return &store{dir, lock}, nil
}

func (s *store) close() error { return s.lock.Close() }

func (s *store) path(id string) string { return filepath.Join(s.dir, id+".json") }

// read reads every network. An invalid record is an error: skipping it would lose a
// network that Docker still has.
func (s *store) read() (map[string]*Network, error) {
	paths, err := filepath.Glob(s.path("*"))
	if err != nil {
		return nil, err
	}
	networks := make(map[string]*Network)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a network: %w", err)
		}
		n := new(Network)
		if err := json.Unmarshal(b, n); err != nil {
			return nil, fmt.Errorf("read network %s: %w; remove the file to forget that network", path, err)
		}
		if n.Endpoints == nil {
			n.Endpoints = make(map[string]*Endpoint)
		}
		networks[n.ID] = n
	}
	return networks, nil
}

// put writes a network's record and syncs it to disk.
func (s *store) put(n *Network) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	draft := filepath.Join(s.dir, "."+n.ID)
	if err := writeThrough(draft, b); err != nil {
		return fmt.Errorf("record network: %w", err)
	}
	if err := os.Rename(draft, s.path(n.ID)); err != nil {
		return fmt.Errorf("record network: %w", err)
	}
	return nil
}

func writeThrough(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(cmp.Or(err, f.Sync()), f.Close())
}

func (s *store) remove(n *Network) error {
	if err := os.Remove(s.path(n.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a network: %w", err)
	}
	return nil
}

// sorted returns all networks in a fixed order.
func (d *Driver) sorted() []*Network {
	return slices.SortedFunc(maps.Values(d.networks), func(a, b *Network) int { return cmp.Compare(a.ID, b.ID) })
}
