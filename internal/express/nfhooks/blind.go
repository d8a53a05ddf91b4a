package nfhooks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What can be found out of modules where the kernel does not list its hooks: for
// IPVS whether it has services in the namespace, for ebtables-legacy only that
// it is loaded. To ask for its tables would make them.
const (
	ipvsServices = "/proc/thread-self/net/ip_vs"
	modules      = "/proc/modules"
)

// guess lists the hooks of modules that are known to have some.
func guess() (all []Hook, err error) {
	services, err := hasServices(ipvsServices)
	if err != nil {
		return nil, err
	}
	if services {
		for _, family := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
			all = append(all, Hook{Family: family, Point: unix.NF_INET_FORWARD, Function: "ip_vs", Module: "ip_vs"})
		}
	}
	tables, err := loaded(modules, "ebtable_")
	for _, module := range tables {
		all = append(all, Hook{Family: unix.NFPROTO_BRIDGE, Point: unix.NF_INET_PRE_ROUTING, Function: "ebtables-legacy", Module: module},
			Hook{Family: unix.NFPROTO_BRIDGE, Point: unix.NF_INET_POST_ROUTING, Function: "ebtables-legacy", Module: module})
	}
	return all, err
}

// hasServices reports whether IPVS lists anything behind its heading of three
// lines.
func hasServices(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list services of IPVS: %w", err)
	}
	defer f.Close()
	lines := 0
	for in := bufio.NewScanner(f); in.Scan(); {
		lines++
	}
	return lines > 3, nil
}

// loaded returns the modules in a file of the form of /proc/modules whose names
// have a prefix.
func loaded(path, prefix string) (names []string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without modules
	}
	if err != nil {
		return nil, fmt.Errorf("list the kernel's modules: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, err
}
