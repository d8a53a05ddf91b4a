package rules

import (
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

func readLegacy(opts Options) (bases []*base, err error) {
	names, err := os.ReadFile(legacyNames)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without it
	}
	if err != nil {
		return nil, err
	}
	tables := strings.Fields(string(names))
	if len(tables) == 0 {
		return nil, nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for _, table := range tables {
		if table == "nat" {
			continue // sees the first packet of a connection only
		}
		found, err := retry(func() ([]*base, error) { return readLegacyTable(fd, table, opts) })
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", table, err)
		}
		bases = append(bases, found...)
	}
	return bases, nil
}

func readLegacyTable(fd int, table string, opts Options) ([]*base, error) {
	info := make([]byte, legacyInfoSize)
	copy(info[:legacyNameSize-1], table)
	if _, err := getsockopt(fd, soGetInfo, info); err != nil {
		return nil, err
	}
	layout, err := parseLegacyInfo(info)
	if err != nil {
		return nil, err
	}
	blob := make([]byte, legacyEntriesHeader+int(layout.size))
	copy(blob[:legacyNameSize-1], table)
	*(*uint32)(unsafe.Pointer(&blob[legacyNameSize])) = layout.size
	n, err := getsockopt(fd, soGetEntries, blob)
	if errors.Is(err, unix.EAGAIN) || err == nil && n != len(blob) {
		return nil, errChanged
	}
	if err != nil {
		return nil, err
	}
	return parseLegacy(table, layout, blob[legacyEntriesHeader:], opts)
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
