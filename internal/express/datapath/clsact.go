package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/tcfilter"
)

// clsactHooker attaches tc filters, for kernels without tcx. Filters live
// until they are removed, with or without a daemon. SCON's are recognised by
// their names; a clsact qdisc that SCON added is recorded by a pin.
type clsactHooker struct {
	program chooser
	pinDir  string
}

const (
	kindClsact   = "clsact"
	filterPrefix = "scon_"
	filterHandle = 0x5c0
	// Egress ahead of others, ingress after them: see Hook.egress.
	firstPriority = 1
	lastPriority  = 0xfffe
)

func (c *clsactHooker) mode() string { return "clsact" }
func (c *clsactHooker) close() error { return nil }

func (c *clsactHooker) filter(h Hook, ifindex int) *netlink.BpfFilter {
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    filterHandle,
			Protocol:  unix.ETH_P_ALL,
			Priority:  lastPriority,
		},
		Name:         filterPrefix + h.String(),
		DirectAction: true,
	}
	if h.egress() {
		f.Parent, f.Priority = netlink.HANDLE_MIN_EGRESS, firstPriority
	}
	return f
}

func (c *clsactHooker) attach(h Hook, ifindex int) error {
	program, err := c.program(h, ifindex)
	if err != nil {
		return err
	}
	if err := c.ensureQdisc(ifindex); err != nil {
		return err
	}
	f := c.filter(h, ifindex)
	f.Fd = program.FD()
	return netlink.FilterReplace(f)
}

func (c *clsactHooker) detach(h Hook, ifindex int) error {
	if err := netlink.FilterDel(c.filter(h, ifindex)); err != nil && !gone(err) {
		return err
	}
	return c.dropQdisc(ifindex)
}

// attached visits every device with a clsact qdisc: filters need no pins.
func (c *clsactHooker) attached() ([]Attached, error) {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	var all []Attached
	for _, q := range qdiscs {
		if q.Type() != kindClsact {
			continue
		}
		ifindex := q.Attrs().LinkIndex
		filters, err := filters(ifindex)
		if err != nil {
			return nil, err
		}
		for _, h := range []Hook{FromContainer, ToWire, FromWire, ToContainer} {
			if slices.ContainsFunc(filters, func(f tcfilter.Filter) bool {
				return f.Own() && strings.HasPrefix(f.Name, c.filter(h, ifindex).Name)
			}) {
				all = append(all, Attached{Hook: h, Ifindex: ifindex})
			}
		}
	}
	return all, nil
}

// filters lists the filters of both sides of a device, none if it is gone.
func filters(ifindex int) ([]tcfilter.Filter, error) {
	ingress, err := tcfilter.Ingress(ifindex)
	if err != nil && !gone(err) {
		return nil, err
	}
	egress, err := tcfilter.Egress(ifindex)
	if err != nil && !gone(err) {
		return nil, err
	}
	return append(ingress, egress...), nil
}

// ensureQdisc adds a clsact qdisc if there is none, and records that it is
// SCON's.
func (c *clsactHooker) ensureQdisc(ifindex int) error {
	err := netlink.QdiscAdd(clsactQdisc(ifindex))
	switch {
	case errors.Is(err, unix.EEXIST):
		return c.checkQdisc(ifindex)
	case err != nil:
		return fmt.Errorf("adding a clsact qdisc: %w", err)
	}
	return c.markQdisc(ifindex)
}

// checkQdisc checks that the qdisc in the place of a clsact qdisc is one. An
// ingress qdisc may be there, which has no egress.
func (c *clsactHooker) checkQdisc(ifindex int) error {
	if c.isOurQdisc(ifindex) {
		return nil
	}
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("read the qdisc in place: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().LinkIndex == ifindex && q.Type() == "ingress" {
			return errors.New("it has an ingress qdisc, beside which clsact cannot be added")
		}
	}
	return nil
}

// dropQdisc removes the qdisc if SCON added it and it has no filters.
func (c *clsactHooker) dropQdisc(ifindex int) error {
	if !c.isOurQdisc(ifindex) {
		return nil
	}
	left, err := filters(ifindex)
	if err != nil || len(left) > 0 {
		return err
	}
	if err := netlink.QdiscDel(clsactQdisc(ifindex)); err != nil && !gone(err) {
		return fmt.Errorf("removing the clsact qdisc: %w", err)
	}
	return c.unmarkQdisc(ifindex)
}

func clsactQdisc(ifindex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

// gone: no such device, qdisc or filter.
func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// A directory on the bpffs, which may hold only pins and directories, records
// across crashes that a qdisc is SCON's.
func (c *clsactHooker) qdiscMark(ifindex int) string {
	return filepath.Join(c.pinDir, fmt.Sprintf("qdisc_%d", ifindex))
}

func (c *clsactHooker) markQdisc(ifindex int) error {
	if err := os.Mkdir(c.qdiscMark(ifindex), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("marking the clsact qdisc as SCON's: %w", err)
	}
	return nil
}

func (c *clsactHooker) isOurQdisc(ifindex int) bool {
	_, err := os.Stat(c.qdiscMark(ifindex))
	return err == nil
}

func (c *clsactHooker) unmarkQdisc(ifindex int) error {
	return os.Remove(c.qdiscMark(ifindex))
}
