package topology

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// document is a YAML file with the positions of its values.
type document struct {
	value    any
	places   map[string]place    // by path
	order    map[string][]string // keys of mappings, by path
	problems []problem
}

// place is a position in the file, counted from 1.
type place struct{ line, column int }

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.line, o.line), cmp.Compare(p.column, o.column))
}

// key returns the key of a path in the document's maps.
func key(path []string) string { return strings.Join(path, "\x00") }

// refuse records a problem with a field.
func (d *document) refuse(err error, path ...string) {
	d.problems = append(d.problems, problem{append([]string(nil), path...), err.Error()})
}

// place returns the position of a field or, if it is missing, of its parent.
func (d *document) place(path []string) place {
	for n := len(path); n >= 0; n-- {
		if p, ok := d.places[key(path[:n])]; ok {
			return p
		}
	}
	return place{1, 1}
}

// keys returns the keys of a mapping, in the file's order.
func (d *document) keys(path ...string) []string { return d.order[key(path)] }

// maxDepth is the maximum nesting of mappings and lists. A topology has six levels;
// the parser's time is quadratic in the depth.
const maxDepth = 100

// checkDepth refuses deeply nested content, as a hostile file may have.
func checkDepth(content []byte) error {
	depth, dashes, line := 0, 0, 0
	for _, t := range lexer.Tokenize(string(content)) {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			dashes++
		}
		if depth+dashes > maxDepth {
			return fmt.Errorf("%d:%d: has more than %d levels: this is no topology", t.Position.Line, t.Position.Column, maxDepth)
		}
	}
	return nil
}

// byteOrderMark is written by some editors at the beginning of a file.
const byteOrderMark = "\ufeff"

// parse reads one YAML document. Errors begin with LINE:COLUMN.
func parse(content []byte) (*document, error) {
	content = bytes.TrimPrefix(content, []byte(byteOrderMark))
	if err := checkDepth(content); err != nil {
		return nil, err
	}
	parsed, err := parser.ParseBytes(content, 0)
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil {
			p := e.GetToken().Position
			return nil, fmt.Errorf("%d:%d: %s", p.Line, p.Column, e.GetMessage())
		}
		return nil, fmt.Errorf("1:1: %w", err)
	}
	var bodies []ast.Node
	for _, doc := range parsed.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch {
	case len(bodies) == 0:
		return nil, errors.New("1:1: is empty: want name and topology")
	case len(bodies) > 1:
		p := bodies[1].GetToken().Position
		return nil, fmt.Errorf("%d:%d: begins a second document: want one", p.Line, p.Column)
	}
	d := &document{places: map[string]place{}, order: map[string][]string{}}
	d.value, err = d.read(bodies[0], nil)
	return d, err
}

// read converts a node of the syntax tree to a value and records its position.
func (d *document) read(n ast.Node, path []string) (any, error) {
	at := n.GetToken().Position
	if _, known := d.places[key(path)]; !known { // a key's position takes precedence
		d.places[key(path)] = place{at.Line, at.Column}
	}
	switch n := n.(type) {
	case ast.MapNode:
		return d.readMapping(n, path)
	case *ast.SequenceNode:
		list := []any{}
		for i, item := range n.Values {
			v, err := d.read(item, append(path, fmt.Sprint(i)))
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case *ast.NullNode:
		return nil, nil
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode:
		return n.Value, nil
	case *ast.FloatNode:
		return n.Value, nil
	case *ast.BoolNode:
		return n.Value, nil
	}
	return nil, fmt.Errorf("%d:%d: %s%s: want a plain value; anchors, aliases and tags are not read", at.Line, at.Column, field(path), n)
}

func (d *document) readMapping(m ast.MapNode, path []string) (any, error) {
	values := map[string]any{}
	for it := m.MapRange(); it.Next(); {
		token := it.Key().GetToken()
		name := token.Value
		below := append(append([]string(nil), path...), name)
		d.places[key(below)] = place{token.Position.Line, token.Position.Column}
		d.order[key(path)] = append(d.order[key(path)], name)
		v, err := d.read(it.Value(), below)
		if err != nil {
			return nil, err
		}
		values[name] = v
	}
	return values, nil
}
