package api

import "slices"

// In JSON a list or map is never null: these functions replace nil by an empty one.

func (s Status) whole() Status {
	s.Hooks = list(s.Hooks)
	s.Skipped = list(s.Skipped)
	s.Reasons = counts(s.Reasons)
	s.Containers = list(slices.Clone(s.Containers))
	for i := range s.Containers {
		s.Containers[i].Reasons = counts(s.Containers[i].Reasons)
	}
	return s
}

func (e Explanation) whole() Explanation {
	e.Findings = list(e.Findings)
	e.Flows = list(e.Flows)
	return e
}

func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func counts(m map[string]uint64) map[string]uint64 {
	if m == nil {
		return map[string]uint64{}
	}
	return m
}
