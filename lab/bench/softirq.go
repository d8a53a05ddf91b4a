package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"github.com/scon-project/scon/lab/contention"
)

//go:generate go tool bpf2go -target bpfel -cc clang -type softirq_time -cflags "-O2 -g -Wall -Werror -mcpu=v3" softirq ../bpf/softirq.bpf.c

// softirqMeter measures the time that this machine's CPUs spend in the network
// softirqs, NET_RX and NET_TX. It is open only when needed, because its two probes
// add about 0.1 us to every softirq.
type softirqMeter struct {
	objects softirqObjects
	links   []link.Link
}

// openSoftirqMeter loads the probes and attaches them.
func openSoftirqMeter() (*softirqMeter, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}
	spec, err := loadSoftirq()
	if err != nil {
		return nil, err
	}
	if err := contention.HerePIDs(spec); err != nil {
		return nil, err
	}
	m := &softirqMeter{}
	if err := spec.LoadAndAssign(&m.objects, nil); err != nil {
		return nil, fmt.Errorf("load the softirq probes: %w", err)
	}
	for _, probe := range []link.RawTracepointOptions{
		{Name: "softirq_entry", Program: m.objects.SoftirqEntry},
		{Name: "softirq_exit", Program: m.objects.SoftirqExit},
	} {
		l, err := link.AttachRawTracepoint(probe)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach to irq:%s: %w", probe.Name, err), m.Close())
		}
		m.links = append(m.links, l)
	}
	return m, nil
}

// Total returns the time since the meter was opened, over all CPUs.
func (m *softirqMeter) Total() (time.Duration, error) {
	total, _, err := m.read()
	return total, err
}

// read returns the time since the meter was opened, over all CPUs, and the share of
// it that interrupted the watched process.
func (m *softirqMeter) read() (total, watched time.Duration, err error) {
	var perCPU []softirqSoftirqTime
	if err := m.objects.SoftirqTimes.Lookup(uint32(0), &perCPU); err != nil {
		return 0, 0, fmt.Errorf("read the softirq times: %w", err)
	}
	for _, t := range perCPU {
		total += time.Duration(t.TotalNs)
		watched += time.Duration(t.WatchedNs)
	}
	return total, watched, nil
}

// Close detaches and unloads the probes.
func (m *softirqMeter) Close() error {
	var errs []error
	for _, l := range m.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, m.objects.Close())...)
}
