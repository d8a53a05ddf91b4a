package profile

import (
	"cmp"
	"slices"
)

// common returns the points of the most frequent path and the recordings of the
// packets that took it. It needs at least one recording.
func (c chart) common(paths [][]step) (points []point, same [][]step) {
	groups := make(map[string][][]step)
	for _, steps := range paths {
		if len(steps) < 2 {
			continue
		}
		key := signature(c.points(steps))
		groups[key] = append(groups[key], steps)
		if n := len(groups[key]); n > len(same) {
			same = groups[key]
		}
	}
	if len(same) == 0 {
		return nil, nil
	}
	return c.points(same[0]), same
}

// summarize returns the most frequent path of the recordings. The path is empty
// without recordings.
func (c chart) summarize(name string, paths [][]step, cost Cost) Path {
	w := Path{Name: name, Packets: len(paths)}
	points, same := c.common(paths)
	if len(same) == 0 {
		return w
	}
	w.Share = float64(len(same)) / float64(len(paths))
	rows, totals := make([][]float64, len(same)), make([]float64, len(same))
	for i, steps := range same {
		rows[i] = cost.stretchTimes(steps)
		totals[i] = sum(rows[i])
	}
	mean := means(rows, middleHalf(totals))
	layers, belongs := layersOf(points)
	for i, ns := range mean {
		layers[belongs[i]].NS += ns
	}
	w.Layers = layers
	w.TotalNS = sum(mean)
	w.Spread = (quantile(0.75, totals) - quantile(0.25, totals)) / median(totals)
	return w
}

// rulesOf returns the costs of the rules on some paths, the highest first. Each
// rule has the cost of the path on which it is highest.
func rulesOf(paths []Path) (costs []RuleCost) {
	for _, w := range paths {
		for _, l := range w.Layers {
			if len(l.Chains) > 0 {
				costs = append(costs, RuleCost{l.Hook, l.Chains, w.Name, l.NS, l.NS / w.TotalNS})
			}
		}
	}
	slices.SortStableFunc(costs, func(a, b RuleCost) int { return cmp.Compare(b.NS, a.NS) })
	var dearest []RuleCost
	for _, c := range costs {
		if !slices.ContainsFunc(dearest, c.samePlace) {
			dearest = append(dearest, c)
		}
	}
	return dearest
}

// samePlace reports whether two costs are of the same rules.
func (r RuleCost) samePlace(other RuleCost) bool {
	return r.Hook == other.Hook && slices.Equal(r.Chains, other.Chains)
}

// layerNames returns the names of all layers, in the order in which packets cross
// them where the paths agree. The longest path determines the order.
func layerNames(paths []Path) (names []string) {
	paths = slices.Clone(paths)
	slices.SortStableFunc(paths, func(a, b Path) int { return len(b.Layers) - len(a.Layers) })
	for _, w := range paths {
		at := 0 // index after the path's last layer
		for _, l := range w.Layers {
			if i := slices.Index(names, l.Name); i >= 0 {
				at = max(at, i+1)
				continue
			}
			names = slices.Insert(names, at, l.Name)
			at++
		}
	}
	return names
}

// layer returns the time of a path in a layer. ok is false if the path has no such
// layer.
func (w Path) layer(name string) (ns float64, ok bool) {
	for _, l := range w.Layers {
		if l.Name == name {
			return l.NS, true
		}
	}
	return 0, false
}
