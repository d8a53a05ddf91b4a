package profile

import "time"

// own is the part of the time between two waypoints that one of them takes.
func (c Cost) own(s step) float64 {
	if s.Waypoint == waypointWaypointWAYPOINT_HOOK {
		return c.HookNS
	}
	return c.TracepointNS
}

// between is the time between two waypoints that is their own: half of it is
// the end of the first, half the beginning of the second.
func (c Cost) between(a, b step) float64 { return (c.own(a) + c.own(b)) / 2 }

// stretchTimes are the times between the steps of a way, without what the
// waypoints take.
func (c Cost) stretchTimes(steps []step) []float64 {
	times := make([]float64, len(steps)-1)
	for i, to := range steps[1:] {
		from := steps[i]
		times[i] = float64(int64(to.EnteredNs-from.EnteredNs)-int64(from.BodyNs)) - c.between(from, to)
	}
	return times
}

// meanHeldUp is how long waypoints held up a packet that was followed.
func (c Cost) meanHeldUp(ways [][]step) (ns float64) {
	for _, steps := range ways {
		for _, s := range steps {
			ns += (float64(s.BodyNs) + c.own(s)) / float64(len(ways))
		}
	}
	return ns
}

// spent is the processor time of what was counted, judged by the costs of one.
func (c Cost) spent(counted Cost) time.Duration {
	return time.Duration(float64(counted.Runs)*c.PassNS + float64(counted.Begun)*c.FollowedNS)
}

// finish adds what the measurement has cost: waypoints were there for a part of
// the time.
func (p *Profile) finish(w *waypoints, cost Cost, ways [][]step, attached, whole time.Duration) error {
	counted, err := w.count()
	if err != nil {
		return err
	}
	cost.FollowedNS = cost.meanHeldUp(ways)
	cost.Runs, cost.Begun, cost.Ended, cost.Lost = counted.Runs, counted.Begun, counted.Ended, counted.Lost
	cost.CPUShare = cost.spent(counted).Seconds() / whole.Seconds()
	cost.AttachedShare = attached.Seconds() / whole.Seconds()
	p.Cost = cost
	p.Seconds = time.Since(p.Started).Seconds()
	return nil
}
