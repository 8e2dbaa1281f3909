package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// attr is one attribute that a body may have. set converts, checks and stores its value; an
// error of set becomes a diagnostic that points at the value.
type attr struct {
	name     string
	required bool
	set      func(v cty.Value) error
}

// nested is one type of block that a body may have.
type nested struct {
	name     string
	label    string // the label's meaning, "" for a block without a label
	required bool
	many     bool
	decode   func(b *hcl.Block) hcl.Diagnostics
}

// decodeBody stores the attributes and blocks of a body and reports every mistake: unknown
// members, missing ones, wrong types, values out of range. Gohcl takes 5 for a string and "3" for a
// number, and has no durations and no ranges.
func decodeBody(body hcl.Body, attrs []attr, blocks []nested) hcl.Diagnostics {
	return decodeBodyWith(nil, body, attrs, blocks)
}

// decodeBodyWith is decodeBody with the variables of eval.
func decodeBodyWith(eval *hcl.EvalContext, body hcl.Body, attrs []attr, blocks []nested) hcl.Diagnostics {
	schema := &hcl.BodySchema{}
	for _, a := range attrs {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: a.name, Required: a.required})
	}
	for _, b := range blocks {
		h := hcl.BlockHeaderSchema{Type: b.name}
		if b.label != "" {
			h.LabelNames = []string{b.label}
		}
		schema.Blocks = append(schema.Blocks, h)
	}
	content, diags := body.Content(schema)
	if content == nil {
		return diags
	}
	for _, a := range attrs {
		if got, ok := content.Attributes[a.name]; ok {
			diags = append(diags, decodeAttr(eval, a, got)...)
		}
	}
	for _, b := range blocks {
		found := content.Blocks.OfType(b.name)
		if b.required && len(found) == 0 {
			diags = append(diags, problem(content.MissingItemRange, "the block %q is required", b.name))
		}
		for i, one := range found {
			if i > 0 && !b.many {
				diags = append(diags,
					problem(one.DefRange, "the block %q is there already, on line %d", b.name, found[0].DefRange.Start.Line))
				continue
			}
			diags = append(diags, b.decode(one)...)
		}
	}
	return diags
}

// decodeAttr evaluates one attribute and calls its set function.
func decodeAttr(eval *hcl.EvalContext, a attr, got *hcl.Attribute) hcl.Diagnostics {
	v, diags := got.Expr.Value(eval)
	if diags.HasErrors() {
		return diags
	}
	if v.IsNull() {
		return hcl.Diagnostics{problem(got.Expr.Range(), "%s: must not be null", a.name)}
	}
	if err := a.set(v); err != nil {
		return hcl.Diagnostics{problem(got.Expr.Range(), "%s: %s", a.name, err)}
	}
	return nil
}

// problem makes a diagnostic.
func problem(at hcl.Range, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Subject: at.Ptr()}
}

// parseHCLFile reads and parses a file. The error is a usageError with a line "file, line,
// reason" for each mistake.
func parseHCLFile(path string) (hcl.Body, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		var perr *fs.PathError
		if errors.As(err, &perr) {
			err = perr.Err
		}
		return nil, usagef("reading %s: %w", path, err)
	}
	f, diags := hclsyntax.ParseConfig(src, path, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diagsError(diags)
	}
	return f.Body, nil
}

// diagsError turns diagnostics into one usageError with a line for each, nil if there are none.
func diagsError(diags hcl.Diagnostics) error {
	if !diags.HasErrors() {
		return nil
	}
	var lines []string
	for _, d := range diags {
		text := d.Summary
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		text = strings.TrimRight(strings.Join(strings.Fields(text), " "), ".")
		if d.Subject != nil {
			text = fmt.Sprintf("%s:%d: %s", d.Subject.Filename, d.Subject.Start.Line, text)
		}
		lines = append(lines, text)
	}
	return &usageError{err: errors.New(strings.Join(lines, "\n"))}
}

// The setters convert strictly: a number is not accepted as a string.

func setString(to *string, checks ...func(string) error) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.String {
			return errors.New("must be a string")
		}
		s := v.AsString()
		for _, check := range checks {
			if err := check(s); err != nil {
				return err
			}
		}
		*to = s
		return nil
	}
}

func setBool(to *bool) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.Bool {
			return errors.New("must be true or false")
		}
		*to = v.True()
		return nil
	}
}

// setInt stores a whole number between low and high, both included.
func setInt[T ~int | ~int64 | ~uint64](to *T, low, high int64) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.Number || !v.AsBigFloat().IsInt() {
			return errors.New("must be a whole number")
		}
		n, accuracy := v.AsBigFloat().Int64()
		if accuracy != 0 || n < low || n > high {
			return fmt.Errorf("must be between %d and %d", low, high)
		}
		*to = T(n)
		return nil
	}
}

// setFloat stores a number between low and high, both included.
func setFloat(to *float64, low, high float64) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.Number {
			return errors.New("must be a number")
		}
		n, _ := v.AsBigFloat().Float64()
		if n < low || n > high {
			return fmt.Errorf("must be between %g and %g", low, high)
		}
		*to = n
		return nil
	}
}

// setDuration stores a duration written as a string, such as "250ms".
func setDuration(to *time.Duration, low, high time.Duration) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.String {
			return errors.New(`must be a duration in quotes, such as "250ms" or "2m"`)
		}
		d, err := time.ParseDuration(v.AsString())
		if err != nil {
			return fmt.Errorf(`%q is not a duration such as "250ms" or "2m"`, v.AsString())
		}
		if d < low || d > high {
			return fmt.Errorf("must be between %s and %s", low, high)
		}
		*to = d
		return nil
	}
}

// setStrings stores a list of strings, each of which passes check.
func setStrings(to *[]string, checks ...func(string) error) func(cty.Value) error {
	return func(v cty.Value) error {
		if t := v.Type(); !t.IsTupleType() && !t.IsListType() {
			return errors.New("must be a list of strings")
		}
		list := []string{}
		for it := v.ElementIterator(); it.Next(); {
			_, one := it.Element()
			var s string
			if one.IsNull() {
				return errors.New("must be a list of strings")
			}
			if err := setString(&s, checks...)(one); err != nil {
				return fmt.Errorf("member %d: %w", len(list)+1, err)
			}
			list = append(list, s)
		}
		*to = list
		return nil
	}
}

// setStringMap stores a map of strings. Numbers and booleans become text, as in an environment.
func setStringMap(to *map[string]string, key func(string) error) func(cty.Value) error {
	return func(v cty.Value) error {
		if t := v.Type(); !t.IsObjectType() && !t.IsMapType() {
			return errors.New("must be a map of strings")
		}
		m := map[string]string{}
		for it := v.ElementIterator(); it.Next(); {
			k, one := it.Element()
			if err := key(k.AsString()); err != nil {
				return err
			}
			s, err := convert.Convert(one, cty.String)
			if err != nil || s.IsNull() {
				return fmt.Errorf("the value of %q must be a string", k.AsString())
			}
			m[k.AsString()] = s.AsString()
		}
		*to = m
		return nil
	}
}
