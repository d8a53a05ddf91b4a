package profile

import "time"

// own returns the waypoints' own share of the time between two waypoints of this
// kind.
func (c Cost) own(s step) float64 {
	if s.Waypoint == waypointWaypointWAYPOINT_HOOK {
		return c.HookNS
	}
	return c.TracepointNS
}

// between returns the waypoints' own share of the time between two waypoints: half
// of it is the end of the first, half the beginning of the second.
func (c Cost) between(a, b step) float64 { return (c.own(a) + c.own(b)) / 2 }

// stretchTimes returns the times between the steps of a path, without the
// waypoints' own time.
func (c Cost) stretchTimes(steps []step) []float64 {
	times := make([]float64, len(steps)-1)
	for i, to := range steps[1:] {
		from := steps[i]
		times[i] = float64(int64(to.EnteredNs-from.EnteredNs)-int64(from.BodyNs)) - c.between(from, to)
	}
	return times
}

// meanHeldUp returns the mean time by which waypoints delayed a followed packet.
func (c Cost) meanHeldUp(paths [][]step) (ns float64) {
	for _, steps := range paths {
		for _, s := range steps {
			ns += (float64(s.BodyNs) + c.own(s)) / float64(len(paths))
		}
	}
	return ns
}

// spent returns the processor time of the counted runs, from the cost of one.
func (c Cost) spent(counted Cost) time.Duration {
	return time.Duration(float64(counted.Runs)*c.PassNS + float64(counted.Begun)*c.FollowedNS)
}

// finish records the cost of the measurement. Waypoints were attached for some of
// the time.
func (p *Profile) finish(w *waypoints, cost Cost, paths [][]step, attached, whole time.Duration) error {
	counted, err := w.count()
	if err != nil {
		return err
	}
	cost.FollowedNS = cost.meanHeldUp(paths)
	cost.Runs, cost.Begun, cost.Ended, cost.Lost = counted.Runs, counted.Begun, counted.Ended, counted.Lost
	cost.CPUShare = cost.spent(counted).Seconds() / whole.Seconds()
	cost.AttachedShare = attached.Seconds() / whole.Seconds()
	p.Cost = cost
	p.Seconds = time.Since(p.Started).Seconds()
	return nil
}
