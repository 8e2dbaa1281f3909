package agent

import (
	"bytes"
	"context"
	"errors"
	"mime/multipart"
	"net/http"
	"net/url"
)

// ErrNoFile means that the sandbox has no file at that path. The error is also ErrRefused.
var ErrNoFile = errors.New("there is no such file in the sandbox")

// Upload writes a file in the sandbox and creates its directories. path is absolute.
func (c *Client) Upload(ctx context.Context, baseURL, key, path string, content []byte) error {
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	part, err := w.CreateFormFile("file", "file")
	if err == nil {
		_, err = part.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return &Error{Op: "upload", Kind: ErrRefused, Detail: "the file can't be encoded"}
	}
	r := request{
		op: "upload", method: http.MethodPost, key: key, body: buf.Bytes(), contentType: w.FormDataContentType(),
		url: baseURL + "/api/file/upload?" + url.Values{"path": {path}}.Encode(),
	}
	return c.call(ctx, c.cfg.CreateTimeout, r, nil)
}

// Download reads a file of at most Config.MaxBody bytes from the sandbox. A larger file is
// ErrBadAnswer, a missing one ErrNoFile. path is absolute.
func (c *Client) Download(ctx context.Context, baseURL, key, path string) ([]byte, error) {
	var content []byte
	r := request{
		op: "download", method: http.MethodGet, key: key, raw: &content,
		url: baseURL + "/api/file/download?" + url.Values{"path": {path}}.Encode(),
	}
	err := c.call(ctx, c.cfg.CallTimeout, r, nil)
	var e *Error
	// A server without this call responds 404 too, with another text.
	if errors.As(err, &e) && e.Status == http.StatusNotFound && e.Detail == "File not found" {
		return nil, errors.Join(e, ErrNoFile)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}
