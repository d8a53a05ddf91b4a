// Reference writes what documents say of Go types: packaging/scon.yaml from the settings,
// and the lists of docs/json.md from the documents that commands print. The comments of
// the types' fields are the texts.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

//go:generate go run . ../..

func main() {
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write writes all files below the folder of the module.
func write(root string) error {
	settings, err := structs(filepath.Join(root, "internal/config"))
	if err != nil {
		return err
	}
	yaml, err := settingsFile(settings)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "packaging/scon.yaml"), []byte(yaml), 0o644); err != nil {
		return err
	}
	path := filepath.Join(root, "docs/json.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	filled, err := fill(string(page), func(folder string) (map[string][]field, error) { return structs(filepath.Join(root, folder)) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(filled), 0o644)
}

// field is a field of a struct, or a type that is embedded (name "").
type field struct {
	name string
	typ  string // its name; of a list, of an element
	kind string // in JSON; "strings" are a list of them
	each string // after the name in the path to an element: "[]" of a list, ".NAME" of a map
	tag  string
	doc  string // with its line breaks
}

// structs returns the fields of all struct types of a package.
func structs(folder string) (map[string][]field, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no Go files in %s: %w", folder, err)
	}
	all := make(map[string][]field)
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					all[spec.Name.Name] = fields(s)
				}
			}
			return true
		})
	}
	return all, nil
}

func fields(s *ast.StructType) (all []field) {
	for _, f := range s.Fields.List {
		one := field{doc: strings.TrimSpace(f.Doc.Text() + f.Comment.Text()), typ: typeName(f.Type), kind: kindOf(f.Type)}
		switch t := f.Type.(type) {
		case *ast.ArrayType:
			one.each = "[]"
			if t.Len != nil {
				one.each = "[o, r]"
			}
		case *ast.MapType:
			one.each = ".NAME"
		}
		if f.Tag != nil {
			one.tag = strings.Trim(f.Tag.Value, "`")
		}
		if len(f.Names) == 0 {
			all = append(all, one)
		}
		for _, n := range f.Names {
			one.name = n.Name
			all = append(all, one)
		}
	}
	return all
}

// typeName returns the name of a type, or of that which it points to or is a list of.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.ArrayType:
		return typeName(e.Elt)
	case *ast.MapType:
		return typeName(e.Value)
	}
	return ""
}

// kinds are the names in JSON of Go's types; others are objects.
var kinds = map[string]string{
	"string": "string", "bool": "boolean", "Time": "string",
	"int": "number", "int64": "number", "uint16": "number", "uint32": "number", "uint64": "number", "float64": "number",
}

// kindOf names a type as JSON has it.
func kindOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return kindOf(e.X)
	case *ast.ArrayType:
		if e.Len != nil {
			return "pair of " + kindOf(e.Elt) + "s"
		}
		return kindOf(e.Elt) + "s"
	case *ast.MapType:
		return kindOf(e.Value) + "s by name"
	}
	if kind := kinds[typeName(e)]; kind != "" {
		return kind
	}
	return "object"
}
