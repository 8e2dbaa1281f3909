package conversationapi

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/conversation"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// HandleTrajectory handles GET /api/file/download-trajectory/{id}: a zip with meta.json, which is
// the conversation without its secrets, and a file for each event in its order.
func (a *API) HandleTrajectory(w http.ResponseWriter, r *http.Request) {
	c := a.find(w, r)
	if c == nil {
		return
	}
	i, err := c.Info()
	var ids []string
	if err == nil {
		ids, err = c.EventIDs()
	}
	switch {
	case conversation.IsGone(err):
		wire.WriteDetail(w, http.StatusNotFound, "Not Found")
		return
	case err != nil:
		wire.WriteFailure(w, r, a.logger, err)
		return
	}
	wire.BeginDownload(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": c.Id + ".zip"}))
	if err := writeTrajectory(w, c, i, ids); err != nil {
		a.logger.Warn("a trajectory was not sent whole", "conversation", c.Id, "error", err)
		panic(http.ErrAbortHandler) // so that the client sees that it is not whole
	}
}

func writeTrajectory(w http.ResponseWriter, c *conversation.Conversation, i conversation.Info, ids []string) error {
	z := zip.NewWriter(w)
	meta, err := json.MarshalIndent(i, "", " ")
	if err != nil {
		return err
	}
	if err := addFile(z, c.Id+"/meta.json", meta); err != nil {
		return err
	}
	for n, id := range ids {
		list, err := c.EventsByID([]string{id})
		if err != nil {
			return err
		}
		if err := addFile(z, fmt.Sprintf("%s/events/event-%05d-%s.json", c.Id, n, id), list[0]); err != nil {
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
