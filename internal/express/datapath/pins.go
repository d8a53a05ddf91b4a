package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mapSettings is the section with the settings. The name of a pin can have no
// dots.
const (
	mapSettings = ".data.shared"
	pinSettings = "settings"
)

var pinnedMaps = []string{
	expressMapBuckets, expressMapCandidates, expressMapConentries, expressMapDevices,
	expressMapEvents, expressMapOuters, expressMapRegular, expressMapSent, mapSettings,
}

// MountBPFFS makes sure that dir is on a bpffs, and reports whether it mounted
// one. Several mounts on one directory hide each other's pins, so it checks
// first.
func MountBPFFS(dir string) (mounted bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("read %s: %w", dir, err)
	}
	if st.Type == unix.BPF_FS_MAGIC {
		return false, nil
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		return false, fmt.Errorf("mounting a bpffs on %s: %w", dir, err)
	}
	return true, nil
}

func pinPath(pinDir, name string) string {
	if name == mapSettings {
		name = pinSettings
	}
	return filepath.Join(pinDir, name)
}

// openPinnedMaps returns the maps of an earlier daemon, none if there are none
// or if they do not fit these programs.
func openPinnedMaps(pinDir string, spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	maps := make(map[string]*ebpf.Map)
	for _, name := range pinnedMaps {
		m, err := ebpf.LoadPinnedMap(pinPath(pinDir, name), nil)
		if err == nil {
			maps[name] = m
			err = spec.Maps[name].Compatible(m)
		}
		if err != nil {
			closeMaps(maps)
			return nil, nil
		}
	}
	var settings Settings
	if err := maps[mapSettings].Lookup(uint32(0), &settings); err != nil || settings.Layout != LayoutVersion {
		closeMaps(maps)
		return nil, nil
	}
	return maps, nil
}

// outlast waits until the programs that an earlier daemon left over maps that
// do not fit are inert and their packets have left. Its programs and the new
// ones must not be active at the same time.
func outlast(pinDir string) error {
	pins, err := os.ReadDir(pinDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(pins) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("search for pins: %w", err)
	}
	time.Sleep(heartbeatLimit + passing)
	return nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// pinMaps pins maps in place of those of an earlier daemon, whose layout may
// have had other maps. Hooks stay.
func pinMaps(pinDir string, maps map[string]*ebpf.Map) error {
	if err := os.MkdirAll(pinDir, 0o700); err != nil {
		return fmt.Errorf("making the pin directory: %w", err)
	}
	old, err := os.ReadDir(pinDir)
	if err != nil {
		return fmt.Errorf("search for old pins: %w", err)
	}
	for _, e := range old {
		if _, isHook := parsePin(e.Name()); isHook || e.IsDir() {
			continue // a directory records a qdisc: clsact.go
		}
		if err := os.Remove(filepath.Join(pinDir, e.Name())); err != nil {
			return fmt.Errorf("removing an old pin: %w", err)
		}
	}
	for name, m := range maps {
		if err := m.Pin(pinPath(pinDir, name)); err != nil {
			return fmt.Errorf("pinning %s: %w", name, err)
		}
	}
	return nil
}
