package runbooks

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestList_IsTheTableOfTheIndex(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, r := range list {
		if r.Title == "" || r.Text != "" {
			t.Errorf("%s: title %q, %d bytes of text", r.Name, r.Title, len(r.Text))
		}
		fmt.Fprintf(&want, "| [%s](%s.md) | %s |\n", r.Name, r.Name, r.Title)
	}
	if len(list) < 10 || !strings.Contains(string(page), want.String()) {
		t.Errorf("README.md has not this table:\n%s", want.String())
	}
}

func TestRead_GivesThePageAndListsTheOthersWhereThereIsNone(t *testing.T) {
	page, err := Read("disk")
	if err != nil || page.Name != "disk" || !strings.HasPrefix(page.Text, "# "+page.Title+"\n") {
		t.Errorf("%+v, %v", page, err)
	}
	for _, name := range []string{"dsk", "", "README", "../decisions/README", "disk.md"} {
		var unknown *UnknownError
		if _, err := Read(name); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "disk") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// shape lists the headings of every runbook, in order.
var shape = []string{
	"## What you see",
	"## What it means",
	"## What to check",
	"## What to do",
	"## What not to do",
	"## When it is over",
}

func TestPages_HaveOneShape(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`\]\(([^)#]+)\)`)
	for _, r := range list {
		page, err := Read(r.Name)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for n, line := range strings.Split(page.Text, "\n") {
			if strings.HasPrefix(line, "## ") {
				found = append(found, line)
			}
			if len([]rune(line)) > 100 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s.md:%d: longer than 100 columns", r.Name, n+1)
			}
		}
		if strings.Join(found, "\n") != strings.Join(shape, "\n") {
			t.Errorf("%s.md has the headings %q, want %q", r.Name, found, shape)
		}
		for _, link := range links.FindAllStringSubmatch(page.Text, -1) {
			t.Errorf("%s.md links to %s; an operator has no tree: name it as a command", r.Name, link[1])
		}
	}
}

func TestAlerts_HaveOneShapeAndAreFoundByName(t *testing.T) {
	list, err := Alerts()
	if err != nil || len(list) < 12 {
		t.Fatalf("%d pages, %v", len(list), err)
	}
	for _, r := range list {
		page, err := Read(r.Name)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for n, line := range strings.Split(page.Text, "\n") {
			if strings.HasPrefix(line, "## ") {
				found = append(found, line)
			}
			if len([]rune(line)) > 100 {
				t.Errorf("alerts/%s.md:%d: longer than 100 columns", r.Name, n+1)
			}
		}
		if want := "## Meaning\n## Impact\n## Diagnosis\n## What to do"; strings.Join(found, "\n") != want ||
			!strings.HasPrefix(page.Text, "# "+r.Name+": "+page.Title+"\n") {
			t.Errorf("alerts/%s.md: title %q, headings %q", r.Name, page.Title, found)
		}
		for _, named := range regexp.MustCompile("bivouac runbook ([a-z-]+)`").FindAllStringSubmatch(page.Text, -1) {
			if _, err := Read(named[1]); err != nil {
				t.Errorf("alerts/%s.md: %v", r.Name, err)
			}
		}
	}
}
