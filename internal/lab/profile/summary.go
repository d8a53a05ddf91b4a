package profile

import (
	"cmp"
	"slices"
)

// common returns the ways that most packets went, and how many there are.
// It needs at least one.
func (c chart) common(ways [][]step) (points []point, same [][]step) {
	groups := make(map[string][][]step)
	for _, steps := range ways {
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

// summarize makes a Way of many: of those that most packets went. It is empty
// if there are none.
func (c chart) summarize(name string, ways [][]step, cost Cost) Way {
	w := Way{Name: name, Packets: len(ways)}
	points, same := c.common(ways)
	if len(same) == 0 {
		return w
	}
	w.Share = float64(len(same)) / float64(len(ways))
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

// rulesOf are the costs of the rules on some ways, the dearest first: each where
// it is the dearest.
func rulesOf(ways []Way) (costs []RuleCost) {
	for _, w := range ways {
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

// samePlace tells whether two costs are of the same rules.
func (r RuleCost) samePlace(other RuleCost) bool {
	return r.Hook == other.Hook && slices.Equal(r.Chains, other.Chains)
}

// layerNames are the names of all layers, in the order in which packets meet
// them as far as the ways agree; the longest way leads.
func layerNames(ways []Way) (names []string) {
	ways = slices.Clone(ways)
	slices.SortStableFunc(ways, func(a, b Way) int { return len(b.Layers) - len(a.Layers) })
	for _, w := range ways {
		at := 0 // behind the way's last layer
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

// layer is how long a way takes in a layer, and whether it meets it.
func (w Way) layer(name string) (ns float64, ok bool) {
	for _, l := range w.Layers {
		if l.Name == name {
			return l.NS, true
		}
	}
	return 0, false
}
