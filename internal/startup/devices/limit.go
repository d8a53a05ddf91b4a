package devices

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
)

// limit sets the device's rates, at the sending end of each direction: the host's for
// traffic to the container, the container's for traffic from it. The hooks of the
// express path stay free, which a policer would need.
func (h *Host) limit(s Spec) error {
	q := s.Conf.QoS
	if s.Conf.Bandwidth != nil {
		q = s.Conf.Bandwidth
	}
	if q == nil {
		return nil
	}
	if q.IngressRate > 0 {
		if !HasHost(s.Conf.Kind) {
			return fmt.Errorf("limit the rate to the container: kind %s has no device on the host to limit it at", s.Conf.Kind)
		}
		if err := shape(s.Host, q.IngressRate, q.IngressBurst, q.IngressPeak); err != nil {
			return err
		}
	}
	if q.EgressRate == 0 {
		return nil
	}
	return s.inside(func() error { return shape(s.Name, q.EgressRate, q.EgressBurst, q.EgressPeak) })
}

const (
	// latency is how long a packet may be queued, in microseconds.
	latency = 25_000
	// largest is the largest packet of the device, in bytes. A burst must hold it, or
	// it is never sent.
	largest = 64 << 10
)

// shape sets a token bucket filter as root qdisc of a device in the calling thread's
// namespace. Rates are bits per second, the burst bits.
func shape(name string, rate, burst, peak uint64) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("limit the rate of %s: %w", name, err)
	}
	bytesPerSecond := rate / 8
	bucket := burst / 8
	if bucket == 0 {
		bucket = bytesPerSecond / 100
	}
	bucket = max(bucket, largest)
	// The kernel stores time and bytes in 32 bits.
	queue := bytesPerSecond * latency / 1_000_000
	bucket = min(bucket, uint64(math.MaxUint32/ticksOf(bytesPerSecond, 1)), math.MaxUint32-queue)
	tbf := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytesPerSecond,
		Limit:      uint32(queue + bucket),
		Buffer:     uint32(ticksOf(bytesPerSecond, bucket)),
	}
	if peak > 0 {
		tbf.Peakrate = peak / 8
		tbf.Minburst = uint32(ticksOf(peak/8, largest))
	}
	if err := netlink.QdiscReplace(tbf); err != nil {
		return fmt.Errorf("limit the rate of %s: %w", name, err)
	}
	return nil
}

// ticksOf returns the transmission time of bytes at a rate, in the kernel's ticks.
func ticksOf(bytesPerSecond, bytes uint64) float64 {
	return netlink.TickInUsec() * float64(bytes) * 1e6 / float64(bytesPerSecond)
}
