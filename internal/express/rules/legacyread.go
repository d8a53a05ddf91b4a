package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacySources says how to read the tables of each family. names lists the
// tables that iptables-legacy has created in the namespace; reading another
// one would create it.
var legacySources = []legacySource{
	{legacyForms[ipv4], "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.IPPROTO_IP},
	{legacyForms[ipv6], "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6},
}

type legacySource struct {
	form          *legacyForm
	names         string
	domain, level int
}

// Options of x_tables' sockets, the same for IPv6.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES
)

// legacyTable is one table as the kernel stores it.
type legacyTable struct {
	form    *legacyForm
	name    string
	layout  legacyLayout
	entries []byte
}

// readLegacyTables reads the tables. It reads nat, which sees only the first
// packet of a connection, if that is asked for.
func readLegacyTables(opts Options) (tables []legacyTable, err error) {
	for _, s := range legacySources {
		more, err := s.read(opts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.form.name, err)
		}
		tables = append(tables, more...)
	}
	return tables, nil
}

func (s legacySource) read(opts Options) (tables []legacyTable, err error) {
	names, err := s.tableNames()
	if err != nil || len(names) == 0 {
		return nil, err
	}
	fd, err := unix.Socket(s.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for _, name := range names {
		if name == "nat" && !opts.Drops {
			continue
		}
		var table legacyTable
		err := retry(func() (err error) {
			table, err = s.readTable(fd, name, opts)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		tables = append(tables, table)
	}
	return tables, nil
}

// tableNames lists the tables that exist. It does so several times a second: os.ReadFile
// would have the runtime's poller watch the file, which wakes another thread.
func (s legacySource) tableNames() ([]string, error) {
	fd, err := unix.Open(s.names, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without it
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", s.names, err)
	}
	defer unix.Close(fd)
	var names [4 << 10]byte // there are five tables, and no others can be added
	n, err := unix.Read(fd, names[:])
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.names, err)
	}
	return strings.Fields(string(names[:n])), nil
}

func (s legacySource) readTable(fd int, name string, opts Options) (t legacyTable, err error) {
	info := make([]byte, legacyInfoSize)
	copy(info[:legacyNameSize-1], name)
	if _, err := getsockopt(fd, s.level, soGetInfo, info); err != nil {
		return t, err
	}
	t.form, t.name = s.form, name
	if t.layout, err = parseLegacyInfo(info); err != nil {
		return t, err
	}
	if opts.Drops && t.layout.size > mostDropBytes {
		return t, ErrTooMany
	}
	blob := make([]byte, legacyEntriesHeader+int(t.layout.size))
	copy(blob[:legacyNameSize-1], name)
	binary.NativeEndian.PutUint32(blob[legacyNameSize:], t.layout.size)
	n, err := getsockopt(fd, s.level, soGetEntries, blob)
	if errors.Is(err, unix.EAGAIN) || err == nil && n != len(blob) {
		return t, errChanged
	}
	t.entries = blob[legacyEntriesHeader:]
	return t, err
}

// getsockopt reads an option whose request is in the buffer of the answer, and
// returns the length of the answer.
func getsockopt(fd, level, option int, buf []byte) (int, error) {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}
