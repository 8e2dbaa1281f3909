package tools

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// Bounds of a view.
const (
	maxImage   = 5 << 20 // bytes of an image that is shown
	maxEntries = 1000    // of a directory
)

// clipped says that a view is not the whole.
const clipped = "<response clipped><NOTE>%s</NOTE>"

// view shows a file or a part of it.
func (e *fileEditor) view(a fileEditorAction, path string) (Observation, error) {
	if o, is, err := e.viewImage(a, path); is || err != nil {
		return o, err
	}
	f, err := readFile(path, a.Path)
	if err != nil {
		return Observation{}, err
	}
	lines := strings.Split(f.text, "\n")
	if a.ViewRange == nil {
		return e.observe(a, numbered(lines, a.Path, 1)), nil
	}
	if len(lines) > 1 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1] // the last line has ended
	}
	first, last, note := a.ViewRange[0], a.ViewRange[1], ""
	shown := fmt.Sprint(a.ViewRange)
	if first < 1 || first > len(lines) {
		return Observation{}, invalid("view_range", shown,
			fmt.Sprintf("Its first element `%d` should be within the range of lines of the file: [1, %d].", first, len(lines)))
	}
	if last > len(lines) {
		note = fmt.Sprintf("NOTE: We only show up to %d since there're only %d lines in this file.\n", len(lines), len(lines))
	}
	if last == -1 || last > len(lines) {
		last = len(lines)
	}
	if last < first {
		return Observation{}, invalid("view_range", shown,
			fmt.Sprintf("Its second element `%d` should be greater than or equal to the first element `%d`.", last, first))
	}
	return e.observe(a, note+numbered(lines[first-1:last], a.Path, first)), nil
}

// numbered returns lines with their numbers, as cat -n prints them.
func numbered(lines []string, what string, first int) string {
	var b strings.Builder
	b.WriteString("Here's the result of running `cat -n` on " + what + ":\n")
	left := maxView
	for i, line := range lines {
		line = elide(line, maxLineView)
		if left -= utf8.RuneCountInString(line) + 1; left < 0 {
			note := fmt.Sprintf(
				"The rest, from line %d of %d on, is not shown. Use view_range to view it, "+
					"or grep -n to find the lines that you need.",
				first+i,
				first+len(lines)-1,
			)
			fmt.Fprintf(&b, clipped+"\n", note)
			break
		}
		fmt.Fprintf(&b, "%6d\t%s\n", first+i, line)
	}
	return b.String()
}

// viewImage shows a picture, and reports whether the file is one: by its name and its bytes, since a
// pointer of git-lfs has the name of one.
func (e *fileEditor) viewImage(a fileEditorAction, path string) (Observation, bool, error) {
	if !slices.Contains([]string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"}, strings.ToLower(filepath.Ext(path))) {
		return Observation{}, false, nil
	}
	b, err := readBytes(path, a.Path, maxImage)
	if err != nil {
		return Observation{}, false, err
	}
	kind := http.DetectContentType(b)
	if !strings.HasPrefix(kind, "image/") {
		return Observation{}, false, nil
	}
	o := e.observe(a, "Image file "+a.Path+" read successfully. Displaying image content.")
	o.Content = append(o.Content, event.Content{
		Type: "image", ImageURLs: []string{"data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(b)},
	})
	return o, true, nil
}

// viewDirectory lists a directory, two levels deep.
func (e *fileEditor) viewDirectory(a fileEditorAction, path string) (Observation, error) {
	if a.ViewRange != nil {
		return Observation{}, invalid("view_range", fmt.Sprint(a.ViewRange), "The `view_range` parameter is not allowed "+
			"when `path` points to a directory.")
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return Observation{}, fmt.Errorf("The directory %s can't be read: %w", a.Path, err)
	}
	root := strings.TrimSuffix(a.Path, "/")
	list := []string{root + "/"}
	hiddenOnes := 0
	for _, one := range entries {
		if strings.HasPrefix(one.Name(), ".") {
			hiddenOnes++
			continue
		}
		list = append(list, entryLine(root, one))
		if !one.IsDir() || len(list) > maxEntries {
			continue
		}
		below, err := os.ReadDir(filepath.Join(path, one.Name()))
		if err != nil {
			continue // one that may not be read has its name in the list
		}
		for _, two := range below {
			if !strings.HasPrefix(two.Name(), ".") {
				list = append(list, entryLine(root+"/"+one.Name(), two))
			}
		}
	}
	note := ""
	if len(list) > maxEntries {
		note = "\n" + fmt.Sprintf(clipped,
			strconv.Itoa(len(list)-maxEntries)+" entries are not shown. View a directory below it, or use find.")
		list = list[:maxEntries]
	}
	text := "Here's the files and directories up to 2 levels deep in " + a.Path + ", excluding hidden items:\n" +
		strings.Join(
			list,
			"\n",
		) + note
	if hiddenOnes > 0 {
		text += fmt.Sprintf(
			"\n\n%d hidden files/directories in this directory are excluded. You can use 'ls -la %s' to see them.",
			hiddenOnes,
			a.Path,
		)
	}
	return e.observe(a, text), nil
}

func entryLine(dir string, one fs.DirEntry) string {
	if one.IsDir() {
		return dir + "/" + one.Name() + "/"
	}
	return dir + "/" + one.Name()
}
