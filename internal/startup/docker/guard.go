package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/internal/service"
)

// Any program with root privileges on the host can remove the driver's rules: a restart
// of nftables.service, for example, runs "nft flush ruleset". The guard restores them
// when the rules change. Without the rules the sysctl route_localnet would expose the
// host's loopback, so it is 1 only on bridges with a published port, and only while the
// rules are in place.

// admitPause is the minimum time between two checks of iptables' chain, each of which
// runs a process.
const admitPause = time.Second

// RulesChanged signals that the host's rules may have changed. It returns at once.
func (d *Driver) RulesChanged() {
	select {
	case d.changed <- struct{}{}:
	default: // a check is pending
	}
}

// guard restores rules until the driver ends.
func (d *Driver) guard() {
	beat := time.NewTicker(service.PulseInterval)
	defer beat.Stop()
	var admission <-chan time.Time
	for {
		d.pulse.Beat()
		var err error
		select {
		case <-beat.C:
			continue
		case <-d.stop:
			return
		case <-d.changed:
			if admission == nil {
				admission = time.After(admitPause)
			}
			err = d.restoreRules()
		case <-admission:
			admission = nil
			err = d.restoreAdmission()
		}
		if err != nil {
			d.log.Error("docker driver: restore rules", "error", err)
			if admission == nil { // try again
				admission = time.After(admitPause)
			}
		}
	}
}

// restoreRules rewrites the table if it has changed since it was written.
func (d *Driver) restoreRules() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, _, err := fingerprint()
	if err == nil && now == d.written && (now == "") == (len(d.networks) == 0) {
		return nil
	}
	if err == nil {
		d.log.Warn("docker driver: rules were removed or changed by another program; restoring them", "table", tableName)
	}
	return errors.Join(err, d.putRules())
}

// restoreAdmission restores iptables' chain, and the table if that failed before.
func (d *Driver) restoreAdmission() error {
	err := d.restoreRules()
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(err, admit(context.Background(), d.sorted()))
}

// putRules writes the rules of all networks. If that fails, it disables route_localnet:
// containers cannot reach the host's loopback.
func (d *Driver) putRules() error {
	all := d.sorted()
	if d.ends() {
		return errors.Join(errClosed, closeLoopback(all))
	}
	err := closeLoopback(slices.DeleteFunc(slices.Clone(all), (*Network).publishes))
	var wrote, there int
	if err == nil {
		wrote, err = writeRules(all)
	}
	if err == nil {
		d.written, there, err = fingerprint()
	}
	if err == nil && there != wrote {
		err = fmt.Errorf("table %s has %d rules after %d were written: another program changes it", tableName, there, wrote)
	}
	if err != nil {
		d.written = ""
		return errors.Join(err, closeLoopback(all))
	}
	for _, n := range all {
		if n.publishes() {
			if err := n.setLoopback("1"); err != nil {
				return err
			}
		}
	}
	return nil
}

func closeLoopback(networks []*Network) error {
	var errs []error
	for _, n := range networks {
		errs = append(errs, n.setLoopback("0"))
	}
	return errors.Join(errs...)
}

// setLoopback sets route_localnet of a network's bridge: whether packets with an address
// in 127.0.0.0/8 are routed there. A published port that is reached at 127.0.0.1 needs
// it.
func (n *Network) setLoopback(value string) error {
	return sysctl.Set([]sysctl.Setting{{Name: "net/ipv4/conf/" + n.Bridge + "/route_localnet", Value: value}})
}

// publishes reports whether a container of the network has a published IPv4
// port.
func (n *Network) publishes() bool {
	for _, e := range n.Endpoints {
		if !n.Internal && slices.ContainsFunc(e.Ports, func(p Port) bool { return p.Host.Is4() }) {
			return true
		}
	}
	return false
}

// fingerprint identifies the tables in the kernel by their flags, the number of their chains and
// the handles of their rules, which the kernel does not reuse; count is the number of rules.
// It is "" without a table. It asks for these tables and their chains alone: a list of all
// chains is incomplete if other programs change theirs meanwhile.
func fingerprint() (print string, count int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read rules: %w", err)
		}
	}()
	nft, err := nftables.New()
	if err != nil {
		return "", 0, err
	}
	var b strings.Builder
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		table, err := nft.ListTableOfFamily(tableName, family)
		if errors.Is(err, unix.ENOENT) || err != nil && family == nftables.TableFamilyBridge { // the kernel may lack it
			continue
		}
		if err != nil {
			return "", 0, err
		}
		fmt.Fprintf(&b, "flags %d, use %d\n", table.Flags, table.Use) // a dormant table has no effect
		for _, name := range chainNames[family] {
			rules, err := nft.GetRules(table, &nftables.Chain{Name: name})
			if err != nil {
				return "", 0, err
			}
			b.WriteString(name)
			for _, r := range rules {
				fmt.Fprintf(&b, " %d", r.Handle)
			}
			count += len(rules)
			b.WriteByte('\n')
		}
	}
	return b.String(), count, nil
}
