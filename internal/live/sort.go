package live

import (
	"cmp"
	"slices"
)

// Orders of containers and connections. Equal ones are in the order of their names.
var (
	ContainerOrders = []Order[Container]{
		{"express", func(a, b *Container) int { return cmp.Compare(b.Express.Packets, a.Express.Packets) }},
		{"bytes", func(a, b *Container) int { return cmp.Compare(b.Express.Bytes, a.Express.Bytes) }},
		{"regular", func(a, b *Container) int { return cmp.Compare(b.Regular, a.Regular) }},
		{"share", func(a, b *Container) int { return cmp.Compare(b.Share(), a.Share()) }},
		{"entries", func(a, b *Container) int { return cmp.Compare(b.Entries, a.Entries) }},
		{"bridge", func(a, b *Container) int { return cmp.Compare(a.Bridge, b.Bridge) }},
		{"port", func(a, b *Container) int { return cmp.Compare(a.Dev, b.Dev) }},
		{"reason", func(a, b *Container) int { return slices.Compare(MostFrequent(a.Reasons), MostFrequent(b.Reasons)) }},
		{"name", func(*Container, *Container) int { return 0 }},
	}
	ConnectionOrders = []Order[Connection]{
		{"express", func(a, b *Connection) int { return cmp.Compare(b.Total().Packets, a.Total().Packets) }},
		{"out", func(a, b *Connection) int { return cmp.Compare(b.Express[0].Packets, a.Express[0].Packets) }},
		{"back", func(a, b *Connection) int { return cmp.Compare(b.Express[1].Packets, a.Express[1].Packets) }},
		{"bytes", func(a, b *Connection) int { return cmp.Compare(b.Total().Bytes, a.Total().Bytes) }},
		{"regular", func(a, b *Connection) int { return cmp.Compare(b.regular(), a.regular()) }},
		{"age", func(a, b *Connection) int { return cmp.Compare(b.AgeMS, a.AgeMS) }},
		{"idle", func(a, b *Connection) int { return cmp.Compare(a.IdleMS, b.IdleMS) }},
		{"way", func(a, b *Connection) int { return cmp.Compare(a.Path, b.Path) }},
		{"state", func(a, b *Connection) int { return cmp.Compare(a.State, b.State) }},
		{"direction", func(a, b *Connection) int { return cmp.Compare(a.Direction, b.Direction) }},
		{"proto", func(a, b *Connection) int { return cmp.Compare(a.Proto, b.Proto) }},
		{"connection", func(a, b *Connection) int { return a.Orig.Compare(b.Orig) }},
		{"peer", func(a, b *Connection) int { return cmp.Compare(a.Peer, b.Peer) }},
		{"lease", func(a, b *Connection) int { return cmp.Compare(a.LeaseBound, b.LeaseBound) }},
		{"name", func(*Connection, *Connection) int { return 0 }},
	}
)

// Order is a column to sort by.
type Order[T any] struct {
	Name    string
	compare func(a, b *T) int
}

// SortContainers sorts by an order, or by its reverse.
func SortContainers(all []Container, by Order[Container], reverse bool) {
	sortBy(all, by, reverse, func(a, b *Container) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dev, b.Dev))
	})
}

// SortConnections sorts by an order, or by its reverse.
func SortConnections(all []Connection, by Order[Connection], reverse bool) {
	sortBy(all, by, reverse, func(a, b *Connection) int {
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Proto, b.Proto), a.Orig.Compare(b.Orig))
	})
}

// sortBy sorts pointers: elements are hundreds of bytes long.
func sortBy[T any](all []T, by Order[T], reverse bool, name func(a, b *T) int) {
	sorted := make([]*T, len(all))
	for i := range all {
		sorted[i] = &all[i]
	}
	slices.SortStableFunc(sorted, func(a, b *T) int {
		n := cmp.Or(by.compare(a, b), name(a, b))
		if reverse {
			return -n
		}
		return n
	})
	in := make([]T, len(all))
	for i, one := range sorted {
		in[i] = *one
	}
	copy(all, in)
}
