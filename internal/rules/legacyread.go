package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyNames lists the tables that iptables-legacy has made in the namespace.
// To ask for another one would make it.
const legacyNames = "/proc/thread-self/net/ip_tables_names"

// Options of x_tables' sockets.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES
)

// legacyTable is one table as the kernel stores it.
type legacyTable struct {
	name    string
	layout  legacyLayout
	entries []byte
}

// readLegacyTables reads the tables; nat, which sees the first packet of a
// connection only, if that is asked for.
func readLegacyTables(opts Options) (tables []legacyTable, err error) {
	names, err := os.ReadFile(legacyNames)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without it
	}
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for _, name := range strings.Fields(string(names)) {
		if name == "nat" && !opts.Drops {
			continue
		}
		var table legacyTable
		err := retry(func() (err error) {
			table, err = readLegacyTable(fd, name, opts)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		tables = append(tables, table)
	}
	return tables, nil
}

func readLegacyTable(fd int, name string, opts Options) (t legacyTable, err error) {
	info := make([]byte, legacyInfoSize)
	copy(info[:legacyNameSize-1], name)
	if _, err := getsockopt(fd, soGetInfo, info); err != nil {
		return t, err
	}
	t.name = name
	if t.layout, err = parseLegacyInfo(info); err != nil {
		return t, err
	}
	if opts.Drops && t.layout.size > mostDropBytes {
		return t, ErrTooMany
	}
	blob := make([]byte, legacyEntriesHeader+int(t.layout.size))
	copy(blob[:legacyNameSize-1], name)
	binary.NativeEndian.PutUint32(blob[legacyNameSize:], t.layout.size)
	n, err := getsockopt(fd, soGetEntries, blob)
	if errors.Is(err, unix.EAGAIN) || err == nil && n != len(blob) {
		return t, errChanged
	}
	t.entries = blob[legacyEntriesHeader:]
	return t, err
}

// getsockopt reads an option whose request stands in the buffer of the answer,
// and returns the answer's length.
func getsockopt(fd, option int, buf []byte) (int, error) {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}
