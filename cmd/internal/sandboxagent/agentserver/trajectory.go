package agentserver

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"time"
)

// downloadTime is how long a client may take to read an archive.
const downloadTime = 30 * time.Minute

// handleTrajectory handles GET /api/file/download-trajectory/{id}: a zip with meta.json, which is
// the conversation without its secrets, and a file for each event in its order.
func (s *Server) handleTrajectory(w http.ResponseWriter, r *http.Request) {
	c := s.find(w, r)
	if c == nil {
		return
	}
	i, err := c.info()
	var entries []eventEntry
	if err == nil {
		c.mu.Lock()
		var l *eventLog
		if l, err = c.events(); err == nil {
			entries = slices.Clone(l.entries)
		}
		c.mu.Unlock()
	}
	switch {
	case isGone(err):
		writeDetail(w, http.StatusNotFound, "Not Found")
		return
	case err != nil:
		s.failed(w, r, err)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadTime)) // a test's recorder has none
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": c.id + ".zip"}))
	if err := c.writeTrajectory(w, i, entries); err != nil {
		s.logger.Warn("a trajectory was not sent whole", "conversation", c.id, "error", err)
		panic(http.ErrAbortHandler) // so that the client sees that it is not whole
	}
}

func (c *conversation) writeTrajectory(w http.ResponseWriter, i info, entries []eventEntry) error {
	z := zip.NewWriter(w)
	meta, err := json.MarshalIndent(i, "", " ")
	if err != nil {
		return err
	}
	if err := addFile(z, c.id+"/meta.json", meta); err != nil {
		return err
	}
	for n, e := range entries {
		list, err := c.eventsByID([]string{e.ID})
		if err != nil {
			return err
		}
		if err := addFile(z, fmt.Sprintf("%s/events/event-%05d-%s.json", c.id, n, e.ID), list[0]); err != nil {
			return err
		}
	}
	return z.Close()
}

func addFile(z *zip.Writer, name string, text []byte) error {
	f, err := z.Create(name)
	if err == nil {
		_, err = f.Write(text)
	}
	return err
}
