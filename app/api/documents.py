"""`/documents`: upload, list, state, delete."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, UploadFile

from app.api.deps import ServicesDep, TenantDep
from app.api.schemas import COLLECTION_PATTERN, Uploaded
from app.services import Services
from retriever import Document

router = APIRouter(tags=["documents"])

CollectionForm = Annotated[str, Form(pattern=COLLECTION_PATTERN)]
CollectionQuery = Annotated[str | None, Query(pattern=COLLECTION_PATTERN)]


@router.post("/documents", status_code=202)
def upload(
    tenant: TenantDep, services: ServicesDep, file: list[UploadFile], collection: CollectionForm = "default"
) -> Uploaded:
    """Take one or more files; all of them, or none when one cannot be taken."""
    added: list[Document] = []
    try:
        for part in file:
            added.append(services.retriever.add(tenant, collection, part.filename or "", part.file))
    except Exception:
        for document in added:
            services.retriever.delete(tenant, document.document_id)
        raise
    return Uploaded.model_validate({"documents": [asdict(document) for document in added]})


@router.get("/documents")
def documents(tenant: TenantDep, services: ServicesDep, collection: CollectionQuery = None) -> dict[str, Any]:
    """The caller's documents, newest first."""
    return {"documents": [asdict(document) for document in services.retriever.documents(tenant, collection)]}


@router.get("/documents/{document_id}")
def document(tenant: TenantDep, services: ServicesDep, document_id: str) -> dict[str, Any]:
    """State, pages, passages, warnings or error of one document."""
    return asdict(services.retriever.document(tenant, document_id))


@router.delete("/documents/{document_id}", status_code=204)
def delete(tenant: TenantDep, services: ServicesDep, document_id: str) -> None:
    """Delete a document, its passages, and whatever sessions hold of it."""
    forget(services, tenant, document_id)


def forget(services: Services, tenant: str, document_id: str) -> None:
    """What sessions hold of it first: when that stops halfway, the document is still there, to be deleted again.

    A turn that finds its passages meanwhile is not committed.
    """
    services.retriever.document(tenant, document_id)
    for session_id in services.records.forget_document(tenant, document_id):
        services.store.drop(tenant, session_id)
    services.retriever.delete(tenant, document_id)
