package discover

import "github.com/scon-project/scon/internal/tcfilter"

// noQueue is the qdisc of a port whose traffic nobody shapes.
const noQueue = "noqueue"

// ShapesEgress reports whether packets for the container must leave by the
// port's egress, because a qdisc or somebody's filters there would be skipped
// otherwise.
func (p Port) ShapesEgress() (bool, error) {
	if p.Qdisc != noQueue {
		return true, nil
	}
	filters, err := tcfilter.Egress(p.Index)
	if err != nil {
		return false, err
	}
	for _, f := range filters {
		if !f.Own() {
			return true, nil
		}
	}
	return false, nil
}
